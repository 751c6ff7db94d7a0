"""Servers of other projects beside the running stack; `make test-interop` installs them.

Without them these tests are skipped.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stack import Stack, free_ports, running_gateway, stop, wait_for

BIN = Path(__file__).parents[2] / ".venv-interop" / "bin"
#: On a busy machine it takes minutes.
VLLM_START_TIMEOUT_S = 600

VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            name = "smg" if item.path.name == "test_smg.py" else "vllm"
            item.add_marker(pytest.mark.timeout(VLLM_START_TIMEOUT_S + 240))
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.xdist_group("stack"))
            if not (BIN / name).exists():
                item.add_marker(pytest.mark.skip(reason=f"{name}: run `make test-interop`"))


@pytest.fixture(scope="session")
def vllm(smollm2_dir: Path) -> Iterator[str]:
    """The address of a vLLM server with all its panels and OpenAI's endpoints."""
    with running_vllm(smollm2_dir, "--enable-scale-out") as address:
        yield address


@pytest.fixture(scope="session", params=["--enable-scale-out", "--tokens-only"])
def vllm_generate(request: pytest.FixtureRequest, smollm2_dir: Path) -> Iterator[str]:
    """The address of a vLLM server, with either flag that opens its generate endpoint."""
    if request.param == "--enable-scale-out":
        yield request.getfixturevalue("vllm")
        return
    with running_vllm(smollm2_dir, request.param) as address:
        yield address


@pytest.fixture(scope="session")
def gateway_to_vllm(vllm_generate: str, stack: Stack) -> Iterator[str]:
    """Our gateway, render and derender in front of vLLM."""
    with running_gateway(stack, generate=vllm_generate) as address:
        yield address


@pytest.fixture(scope="session")
def smg(stack: Stack, smollm2_dir: Path) -> Iterator[str]:
    """The address of SMG in front of our generate."""
    http_port, metrics_port = free_ports(2)
    command = [str(BIN / "smg"), "launch", f"--worker-urls=grpc://{stack.generate_grpc}"]
    command += [f"--model-path={smollm2_dir}", "--host=127.0.0.1", f"--port={http_port}"]
    command += [f"--prometheus-port={metrics_port}"]
    # the worker is active by then
    with started(command, {}, "Successfully loaded tokenizer 'smollm2'"):
        yield f"http://127.0.0.1:{http_port}"


@contextlib.contextmanager
def running_vllm(model_dir: Path, flag: str) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [str(BIN / "vllm"), "serve", str(model_dir), "--served-model-name=smollm2"]
    command += ["--host=127.0.0.1", f"--port={port}", "--dtype=float32", "--max-model-len=2048"]
    command += ["--enforce-eager"]  # it compiles for minutes otherwise
    with started([*command, flag], VLLM_ENVIRONMENT, "Application startup complete"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], sign: str) -> Iterator[None]:
    """A server in a session of its own, so that what it starts ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        try:
            wait_for(log, process, sign, timeout_s=VLLM_START_TIMEOUT_S)
            yield
        finally:
            stop(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
