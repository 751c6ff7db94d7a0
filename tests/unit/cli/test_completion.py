"""Completion scripts, run by the shells themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from triptych.flags import flags_of
from triptych_cli.completion import bash_script, zsh_script
from triptych_cli.main import COMMANDS

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")

#: What bash calls a completion function with, and how its answer is printed.
_ASK = """
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_triptych
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "triptych.bash"
    path.write_text(bash_script() + _ASK)
    return path


def completed(script: Path, *words: str, folder: Path | None = None) -> list[str]:
    """What bash offers for the last of ``words``."""
    command = ["bash", "--norc", str(script), "triptych", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, cwd=folder
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@needs_bash
def test_bash_completes_commands(script: Path) -> None:
    assert completed(script, "") == list(COMMANDS)
    assert completed(script, "gen") == ["generate"]
    assert completed(script, "nonsense") == []


@needs_bash
@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_every_flag_of_a_command(script: Path, command: str) -> None:
    flags = flags_of(COMMANDS[command].settings_class())
    names = [name for flag in flags if not flag.is_positional for name in flag.names]
    assert completed(script, command, "--") == ["--help", *names]


@needs_bash
def test_bash_completes_values_and_files(script: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.jsonl").touch()
    (tmp_path / "models").mkdir()
    assert completed(script, "serve", "--dtype", "b") == ["bfloat16"]
    assert completed(script, "serve", "--dtype", "=", "fl") == ["float32", "float16"]
    assert completed(script, "serve", "--log-format", "=") == ["text", "json"]
    assert completed(script, "render", "--input", "t", folder=tmp_path) == ["two words.jsonl"]
    assert completed(script, "prepare", "", folder=tmp_path)[0] == "smollm2"
    assert "models" in completed(script, "serve", "--model", "mo", folder=tmp_path)
    assert completed(script, "serve", "--http-port", "") == []


@needs_zsh
@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("triptych dere\t", "triptych derender"),
        ("triptych serve --dty\tbf\t", "triptych serve --dtype=bfloat16"),
        ("triptych serve --mode\tsmo\t", "triptych serve --model=smollm2"),
        ("triptych prepare two\t", "triptych prepare two words.gguf"),
        ("triptych generate --no-pre\t", "triptych generate --no-prefix-cache"),
        ("triptych completion z\t", "triptych completion zsh"),
    ],
)
def test_zsh_completes_what_is_typed(keys: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "two words.gguf").touch()
    (tmp_path / "script").write_text(zsh_script())
    assert typed_in_zsh(tmp_path, "compinit -u -D; source script", keys) == line


@needs_zsh
def test_zsh_finds_the_script_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "_triptych").write_text(zsh_script())
    setup = "fpath=($PWD $fpath); compinit -u -D"
    assert typed_in_zsh(tmp_path, setup, "triptych gat\t") == "triptych gateway"


def typed_in_zsh(folder: Path, setup: str, keys: str) -> str:
    """The command line that ``keys`` give in an interactive zsh without the user's files."""
    terminal, its_end = pty.openpty()
    zsh = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        cwd=folder,
        env={"HOME": str(folder), "PATH": os.environ["PATH"], "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(its_end)
    try:
        os.write(terminal, f"autoload -U compinit; {setup}; echo re''ady\n".encode())
        read_until(terminal, r"\nready\n")
        os.write(terminal, keys.encode() + b"\x01echo res''ult \x05\n")
        return read_until(terminal, r"\nresult ([^\n]*?) *\n")
    finally:
        zsh.kill()
        zsh.wait()
        os.close(terminal)


def read_until(terminal: int, pattern: str) -> str:
    """What ``pattern`` finds in the terminal's output."""
    shown, deadline = "", time.monotonic() + 60
    while not (found := re.search(pattern, shown)):
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
    return found[found.lastindex or 0]
