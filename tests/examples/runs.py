"""Runs of the examples as their users run them, and what they print."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from support.stack import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = EXAMPLES / "python"
TIMEOUT_S = 120

_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*"|<[0-9a-f ]+>) (\d\.\d{4})')


@dataclass(frozen=True, slots=True)
class Line:
    """One token of a frontend's output: its candidates are (bytes, probability), its own first."""

    token_id: int
    candidates: list[tuple[bytes, float]]


def run(command: Sequence[str | Path], cwd: Path = PYTHON) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd
    )


def python(script: str, *arguments: str | Path) -> str:
    """What an example in Python prints; it must end well."""
    done = run([sys.executable, script, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_tokens(stack: Stack) -> float:
    """Tokens that the worker has sampled since its start."""
    page = httpx.get(f"{stack.generate}/metrics").text
    pattern = r'^triptych_generate_tokens_total\{kind="output"\} (\S+)$'
    (count,) = re.findall(pattern, page, re.MULTILINE)
    return float(count)


def read_frontend(output: str) -> tuple[list[Line], str, str]:
    """Tokens, text and finish of a frontend's output."""
    *tokens, text, finish = output.splitlines()
    lines = [
        Line(int(token[:6]), [(read_token(shown), float(p)) for shown, p in _TOKEN.findall(token)])
        for token in tokens
    ]
    return lines, json.loads(text.removeprefix("text: ")), finish.removeprefix("finish: ")


def read_token(shown: str) -> bytes:
    """The bytes of a token that was printed as text, or in hex."""
    if shown.startswith("<"):
        return bytes.fromhex(shown[1:-1])
    return str(json.loads(shown)).encode()
