"""Log lines as JSON."""

import json
import logging

from triptych.logs import JsonFormatter


def record(**more: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "triptych.x", "levelname": "INFO", "msg": "a %s", **more})
    made.args = ("b\n",)
    return made


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
