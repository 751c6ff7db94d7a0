"""Log lines, as JSON and as text."""

import json
import logging

from triptych.logs import JsonFormatter, TextFormatter


def record(**more: object) -> logging.LogRecord:
    facts = {"name": "triptych.x", "levelname": "INFO", "msg": "a %s", "args": ("b\n",)}
    return logging.makeLogRecord({**facts, **more})


def test_line_is_one_object_with_its_facts() -> None:
    line = JsonFormatter().format(record(facts={"id": "r-1", "status": 200}, created=0.5))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "triptych.x",
        "message": "a b\n",
        "id": "r-1",
        "status": 200,
    }


def test_exceptions_stay_on_the_line() -> None:
    error = ValueError("no")
    line = JsonFormatter().format(record(exc_info=(ValueError, error, None)))
    assert "\n" not in line
    assert json.loads(line)["exception"] == "ValueError: no"


def test_text_is_one_line_without_control_characters() -> None:
    line = TextFormatter().format(record(args=("id=x\r\n12:00:00 forged \x1b[2J\x85é",)))
    assert line.endswith(r"id=x\x0d\x0a12:00:00 forged \x1b[2J\x85é")


def test_traceback_follows_on_lines_of_its_own() -> None:
    error = ValueError("no")
    line = TextFormatter().format(record(exc_info=(ValueError, error, None)))
    assert line.splitlines()[1:] == ["ValueError: no"]
