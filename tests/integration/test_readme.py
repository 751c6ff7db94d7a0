"""The README's Python examples run as they stand, against the running stack."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import triptych
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

README = Path(triptych.__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_readme_example_runs(stack: Stack, number: int) -> None:
    code = BLOCKS[number]
    for documented, real in (
        ("http://127.0.0.1:8000", stack.gateway),
        ("http://127.0.0.1:8002", stack.generate),
        ("127.0.0.1:9002", stack.generate_grpc),
    ):
        code = code.replace(documented, real)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_readme_has_the_examples_that_are_run() -> None:
    assert len(BLOCKS) == 3
