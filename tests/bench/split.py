"""What the split costs: CPU of the gateway per token and per request, before a scripted worker.

Linux only: the CPU time of other processes is read from /proc.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import Connection
from support.stack import free_ports, stop, wait_for
from triptych.import_settings import poll_in_one_thread
from triptych.models import ensure

CHAT = "/v1/chat/completions"
_STREAM_TOKENS = 512
_PACED_TOKENS = 250
_PORTS = ("--http-port=0", "--grpc-port=0")
#: The SMG gateway, where `make test-interop` has installed it.
_SMG = Path(__file__).parents[2] / ".venv-interop" / "bin" / "smg"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway before a scripted worker, and the processes whose CPU time counts."""

    address: str
    counted: Sequence[int]

    def cpu_s(self) -> float:
        return sum(map(cpu_s, self.counted))


def run() -> list[str]:
    """The rows of the table."""
    rows = []
    for name, has_derender in (("derender in its process", True), ("a separate derender", False)):
        with running_gateway(has_derender=has_derender, step_ms=0.25) as gateway:
            rate = asyncio.run(stream_rate(gateway, 64))
            rows.append(f"| split: 64 streams, {name} | {rate:,.0f} tok/s per core |")
            rate = asyncio.run(chat_rate(gateway, 64))
            rows.append(f"| split: one-token chats, {name} | {rate:,.0f} req/s per core |")
        with running_gateway(has_derender=has_derender, step_ms=20) as gateway:
            cost = asyncio.run(paced_cost(gateway, 16))
            rows.append(f"| split: 16 streams of 50 tok/s, {name} | {cost:.1f} µs per token |")
    return rows + _smg_rows()


def _smg_rows() -> list[str]:
    """What SMG takes; nothing where it is not installed."""
    if not _SMG.exists():
        return []
    with running_smg(step_ms=0.25) as gateway:
        rate = asyncio.run(stream_rate(gateway, 64))
    with running_smg(step_ms=20) as gateway:
        cost = asyncio.run(paced_cost(gateway, 16))
    return [
        f"| split: 64 streams, SMG's gateway | {rate:,.0f} tok/s per core |",
        f"| split: 16 streams of 50 tok/s, SMG's gateway | {cost:.1f} µs per token |",
    ]


async def stream_rate(gateway: Gateway, at_once: int) -> float:
    """Tokens per second of CPU; each stream has top-5 logprobs."""
    await _streams(gateway, at_once, 32)
    start = gateway.cpu_s()
    for _ in range(2):
        await _streams(gateway, at_once, _STREAM_TOKENS)
    return 2 * at_once * _STREAM_TOKENS / (gateway.cpu_s() - start)


async def paced_cost(gateway: Gateway, at_once: int) -> float:
    """Microseconds of CPU per token."""
    await _streams(gateway, at_once, 32)
    start = gateway.cpu_s()
    await _streams(gateway, at_once, _PACED_TOKENS)
    return (gateway.cpu_s() - start) / at_once / _PACED_TOKENS * 1e6


async def chat_rate(gateway: Gateway, at_once: int, num_chats: int = 4000) -> float:
    """Answers of one token per second of CPU."""
    body = _body(1, is_stream=False)
    bodies = iter([body] * num_chats)

    async def ask() -> None:
        connection = Connection(gateway.address)
        for each in bodies:
            await connection.post(CHAT, each)
        connection.close()

    await Connection(gateway.address).post(CHAT, body)
    start = gateway.cpu_s()
    await asyncio.gather(*(ask() for _ in range(at_once)))
    return num_chats / (gateway.cpu_s() - start)


async def _streams(gateway: Gateway, at_once: int, num_tokens: int) -> None:
    body = _body(num_tokens, is_stream=True)
    ends = await asyncio.gather(
        *(Connection(gateway.address).last_bytes(CHAT, body) for _ in range(at_once))
    )
    if not all(end.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for end in ends):
        raise RuntimeError(f"a stream ended in {ends[0]!r}")


def _body(max_tokens: int, *, is_stream: bool) -> bytes:
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_tokens": max_tokens,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": is_stream,
    }
    return json.dumps(asked).encode()


@contextlib.contextmanager
def running_gateway(*, has_derender: bool, step_ms: float) -> Iterator[Gateway]:
    """A gateway before the scripted worker; ``has_derender``: in its own process."""
    with contextlib.ExitStack() as stack:
        worker = started(stack, "bench.fast_worker", f"--step-ms={step_ms}").grpc
        render = started(stack, "triptych_cli", "render", *_PORTS).grpc
        flags = [f"--render={render}", f"--generate={worker}", "--http-port=0"]
        if has_derender:
            gateway = started(stack, "bench.split_gateway", *flags)
            yield Gateway(gateway.http, [gateway.pid])
            return
        derender = started(stack, "triptych_cli", "derender", *_PORTS)
        flags.append(f"--derender={derender.grpc}")
        gateway = started(stack, "triptych_cli", "gateway", *flags)
        yield Gateway(gateway.http, [derender.pid, gateway.pid])


@contextlib.contextmanager
def running_smg(*, step_ms: float) -> Iterator[Gateway]:
    """SMG's gateway before a scripted worker of its own."""
    with contextlib.ExitStack() as stack:
        worker = started(stack, "bench.smg_worker", f"--step-ms={step_ms}").grpc
        http_port, metrics_port = free_ports(2)
        command = [str(_SMG), "launch", f"--worker-urls=grpc://{worker}"]
        command += [f"--model-path={ensure('smollm2').directory}", "--host=127.0.0.1"]
        command += [f"--port={http_port}", f"--prometheus-port={metrics_port}"]
        process, log = _logged(stack, command, {})
        wait_for(log, process, "Successfully loaded tokenizer 'smollm2'")
        yield Gateway(f"http://127.0.0.1:{http_port}", [process.pid])


@dataclass(frozen=True, slots=True)
class Started:
    """A process and what it says of its addresses; "" where it has none.

    ``grpcs``: several, separated by commas.
    """

    pid: int
    http: str
    grpc: str
    grpcs: str


def started(stack: contextlib.ExitStack, *module: str) -> Started:
    """``python -m module`` once it serves; ``stack`` ends it.

    Modules that are no command of ``triptych`` get gRPC's threads as commands have them.
    """
    poll_in_one_thread()
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process, log = _logged(stack, [sys.executable, "-m", *module], environment)
    wait_for(log, process, "serves on")
    text = log.read_text()
    https, grpcs = (re.findall(rf"{scheme}://([\d.:]+)", text) for scheme in ("http", "grpc"))
    http, grpc = (f"http://{https[0]}" if https else ""), (grpcs[0] if grpcs else "")
    return Started(process.pid, http, grpc, ",".join(grpcs))


def _logged(
    stack: contextlib.ExitStack, command: list[str], environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], Path]:
    """A process and its log; ``stack`` ends it."""
    log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    stack.callback(stop, process)
    return process, log


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
