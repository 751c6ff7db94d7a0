"""Schemathesis against each service: its examples, limits, random bodies good and bad, and more.

All of its checks are on. What it has to know of the services is in hooks.py and schemathesis.toml.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api.conftest import KEY
from support.stack import Stack

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("service", ["render", "generate", "derender", "gateway"])
def test_service_is_as_its_document_says(stack: Stack, service: str, tmp_path: Path) -> None:
    address = f"{getattr(stack, service)}/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli"]
    command += ["--config-file", str(FOLDER / "schemathesis.toml"), "run", address, "--no-color"]
    run = subprocess.run(
        [*command, f"--header=Authorization: Bearer {KEY}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "No issues found" in run.stdout
