"""The pure functions of the page, tested in node: `node --test tests/browser/unit`."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent / "unit"


def test_pure_functions_in_node() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the path; apt-get install nodejs (20 or newer)")
    done = subprocess.run(
        [node, "--test", *map(str, UNIT.glob("*.test.mjs"))],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
