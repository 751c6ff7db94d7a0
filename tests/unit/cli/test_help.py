"""Help that reads well, and errors of one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from triptych.errors import SetupError
from triptych.flags import Flag, flags_of
from triptych.settings import parse_settings
from triptych_cli.main import COMMANDS, main

#: What no command may load to say what it takes.
HEAVY = {"torch", "transformers", "tokenizers", "fastapi", "grpc", "uvicorn", "matplotlib", "numpy"}


def settings_class(command: str) -> type[BaseSettings]:
    return COMMANDS[command].settings_class()


def help_of(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_gives_each_flag_one_line(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    help_of(command, columns, monkeypatch)
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: triptych {command}")
    assert "\nexamples:\n  " in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    for flag in flags_of(settings_class(command)):
        assert any(line.endswith("  " + flag.text.replace("%%", "%")) for line in lines), flag.name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_described_with_its_default(command: str) -> None:
    for flag in flags_of(settings_class(command)):
        text, _, default = flag.text.partition(" [")
        assert len(text.split()) > 1, flag.name
        assert flag.is_required or default.removesuffix("]") not in {"", "None"}, flag.name
        assert flag.group != "options", f"the class of {flag.name} has no flag_group"


def test_help_loads_no_heavy_package() -> None:
    script = (
        "import contextlib, sys; from triptych_cli.main import COMMANDS, main\n"
        "for name in ['--help', *COMMANDS]:\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main([name, '--help'])\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert done.stdout.count("usage: ") == len(COMMANDS) + 1
    assert "pydantic_settings" in loaded
    assert loaded & HEAVY == set()


def test_the_list_of_commands_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for args in ([], ["--help"], ["-h"], ["help"]):
        assert main(args) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("args", [["help", "render"], ["render", "-h"]])
def test_help_has_other_spellings(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(args)
    assert capsys.readouterr().out.startswith("usage: triptych render")


@pytest.mark.parametrize("args", [["version"], ["--version"]])
def test_version_is_printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    assert capsys.readouterr().out.startswith("triptych 0.")


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["bogus"], 2, "triptych: there is no command 'bogus'; there are serve, prepare, render"),
        (["render", "--foo=secret"], 2, "triptych render: there is no option --foo ("),
        (
            ["render", "--http-prot=1"],
            2,
            "no option --http-prot; did you mean --http-port?",
        ),
        (["render", "requests.jsonl"], 2, "unexpected argument 'requests.jsonl'"),
        (["generate", "--dtype"], 2, "argument --dtype: expected one argument"),
        (["prepare"], 2, "the following arguments are required: MODEL"),
        (["gateway", "--http-port=99999"], 1, "--http-port: must be less than or equal to 65535"),
        (["gateway", "--http-port=99999"], 1, "(got '99999')"),
        (["serve", "--log-level=loud"], 1, "must be 'debug', 'info', 'warning' or 'error'"),
        (
            ["render", "--model=/nonexistent"],
            1,
            "there is no model at /nonexistent",
        ),
    ],
)
def test_errors_are_one_line(
    args: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main(args)
    except SystemExit as exit_:
        ended = exit_.code
    shown = capsys.readouterr()
    assert (ended, shown.out) == (status, "")
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "secret" not in shown.err


@pytest.mark.parametrize(
    ("args", "cache", "message"),
    [
        (["version"], "", "triptych version: No space left on device\n"),
        (
            ["prepare", "smollm2"],
            os.devnull,
            "triptych prepare: /dev/null/models: Not a directory\n",
        ),
    ],
)
def test_what_the_system_refuses_is_one_line(args: list[str], cache: str, message: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "triptych_cli", *args],
            env={**os.environ, "TRIPTYCH_CACHE": cache},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, message)


def test_a_missing_package_is_one_line_that_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from triptych_cli.main import main; sys.exit(main(['render', '--model=.']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        "triptych render: tokenizers is not installed; try: pip install 'triptych[render]'\n"
    )


def value_of(flag: Flag) -> str:
    """A text that the field takes and that is not its default."""
    return flag.words[-1] if flag.words and not flag.takes_path else "30" * 8


def parsed(kind: type[BaseSettings], args: list[str]) -> object:
    """The settings, or what is wrong with them."""
    try:
        return parse_settings(kind, args)
    except SetupError as error:
        return str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_says_what_its_variable_says(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = settings_class(command)
    flags = flags_of(kind)
    required = [value_of(each) for each in flags if each.is_required]
    for flag in [each for each in flags if not each.is_positional]:
        value = value_of(flag)
        variable = f"{kind.model_config['env_prefix']}{flag.field.upper()}"
        given = flag.names[1] if flag.is_switch else f"{flag.name}={value}"
        by_flag = parsed(kind, [*required, given])
        with monkeypatch.context() as context:
            context.setenv(variable, "no" if flag.is_switch else value)
            by_variable = parsed(kind, required)
        if isinstance(by_variable, str):
            by_variable = by_variable.replace(variable, flag.name)
        assert by_flag == by_variable, flag.name


def test_none_takes_an_optional_value_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_RENDER_MAX_MODEL_LEN", "7")
    kind = settings_class("render")
    assert parse_settings(kind, []).model_dump()["max_model_len"] == 7
    assert parse_settings(kind, ["--max-model-len=none"]).model_dump()["max_model_len"] is None
    template = parse_settings(kind, ["--response-template=none"]).model_dump()["response_template"]
    assert template == "none"


def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_GATEWAY_HTTP_PORT", "x")
    assert main(["gateway"]) == 1
    assert capsys.readouterr().err.startswith("triptych gateway: TRIPTYCH_GATEWAY_HTTP_PORT: must")
