"""Fixtures that every test may use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stack import Stack, running_stack
from triptych.models import resolve

# Kernels run through Triton's interpreter; on a GPU: TRITON_INTERPRET=0 pytest -m gpu tests/gpu
# Triton reads it when it is imported, which torch does.
os.environ.setdefault("TRITON_INTERPRET", "1")
#: Run in environments of their own: `make test-api`, `make test-browser`, `make test-clients`.
collect_ignore = ["api", "browser", "clients"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--image-environments",
        type=Path,
        help="folder of support.build_stages: the fleet runs in the images' own environments",
    )
    parser.addoption(
        "--failover-requests",
        type=int,
        default=24,
        help="requests of tests/integration/test_failover.py; `make test-failover` asks 200",
    )


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The built-in model as a Hugging Face directory; `make model` prepares it."""
    location = resolve("smollm2")
    assert location.is_ready, "run `make model` first"
    return location.directory


@pytest.fixture(scope="session")
def stack(smollm2_dir: Path) -> Iterator[Stack]:
    """One running `triptych serve` per session; tests that use it share a worker."""
    assert smollm2_dir.is_dir()
    with running_stack() as started:
        yield started
