"""Fixtures that every test may use."""

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from support.stack import Stack, running_stack
from triptych.models import resolve

# Kernels run through Triton's interpreter; on a GPU: TRITON_INTERPRET=0 pytest -m gpu tests/gpu
# Triton reads it when it is imported, which torch does.
os.environ.setdefault("TRITON_INTERPRET", "1")
# No timed tests: an example takes as long as a busy machine needs.
hypothesis.settings.register_profile("triptych", deadline=None)
hypothesis.settings.load_profile("triptych")
# In a script's background SIGINT is ignored, in the tests and so in what they start and end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
#: Run in environments of their own: `make test-api`, `make test-browser`, `make test-clients`.
collect_ignore = ["api", "browser", "clients"]
#: Of the stack's log, with a failure.
_LOG_LINES = 60


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the stack logged last beside the failure of a test that uses it."""
    report = yield
    used = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(used, Stack):
        lines = used.log.read_text(errors="replace").splitlines()
        report.sections.append(("the stack's log", "\n".join(lines[-_LOG_LINES:])))
    return report


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
