"""The running stack, the direct computation, and a wall around the network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.direct import DirectModel, running_direct_model
from support.stack import Stack, running_stack

REPOSITORY = Path(__file__).parents[2]
API_KEY = "a-key-for-tests"

#: Nothing is looked up outside; lm-eval and the openai client find the key where users put it.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OPENAI_API_KEY": API_KEY,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    default = str(REPOSITORY / ".venv" / "bin" / "python")
    parser.addoption("--server-python", default=default, help="the python that has triptych")


def pytest_configure() -> None:
    os.environ.update(ENVIRONMENT)
    sys.addaudithook(_refuse_the_outside)


def _refuse_the_outside(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise RuntimeError(f"a test connects to {host}")


@pytest.fixture(scope="session")
def server_python(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--server-python"))


@pytest.fixture(scope="session")
def model_dir(server_python: str) -> Path:
    """The prepared directory of the served model; its tokenizer is what the clients load."""
    code = "from triptych.models import resolve; print(resolve('smollm2').directory)"
    done = subprocess.run([server_python, "-c", code], check=True, stdout=subprocess.PIPE)
    directory = Path(done.stdout.decode().strip())
    assert directory.is_dir(), "run `make model` first"
    return directory


@pytest.fixture(scope="session")
def stack(server_python: str, model_dir: Path) -> Iterator[Stack]:
    assert model_dir.is_dir()
    with running_stack(f"--api-key={API_KEY}", python=server_python) as started:
        yield started


@pytest.fixture(scope="session")
def direct(server_python: str, model_dir: Path) -> Iterator[DirectModel]:
    with running_direct_model(server_python, model_dir) as model:
        yield model


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Any:
    import transformers  # reads the environment above when it is imported

    return transformers.AutoTokenizer.from_pretrained(model_dir)
