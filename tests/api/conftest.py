"""The running services, in the server's own environment, with a model that answers at once."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stack import Stack, running_stack

REPOSITORY = Path(__file__).parents[2]
#: The gateway's API key, and the hop secret of the panels.
KEY = "a-key-of-the-tests"
#: Tokens: the model answers to the end of its context where a request does not say how much.
CONTEXT = 64


def pytest_addoption(parser: pytest.Parser) -> None:
    default = str(REPOSITORY / ".venv" / "bin" / "python")
    parser.addoption("--server-python", default=default, help="the python that has triptych")


@pytest.fixture(scope="session")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The product with a tiny model, behind keys."""
    python = str(request.config.getoption("--server-python"))
    model = tmp_path_factory.mktemp("tiny")
    roots = [str(REPOSITORY / folder) for folder in ("services", "shared", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    subprocess.run([python, "-m", "api.make_model", str(model)], env=environment, check=True)
    flags = [f"--model={model}", "--served-model-name=tiny", f"--max-model-len={CONTEXT}"]
    flags += [f"--api-key={KEY}", f"--hop-secret={KEY}"]
    with running_stack(*flags, python=python) as started:
        yield started
