"""What the split costs with a model: a chat through all processes, and at generate's own door."""

import asyncio
import contextlib
import json
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.client import Connection
from bench.split import started
from bench.workloads import CHAT_RENDER, GENERATE

CHAT = "/v1/chat/completions"
_NUM_TOKENS = 64
_REPEATS = 9


@dataclass(frozen=True, slots=True)
class Services:
    """JSON addresses of four services, each in a process of its own."""

    gateway: str
    render: str
    generate: str


def run(threads: int, dtype: str) -> list[str]:
    with _services(threads, dtype) as services:
        return asyncio.run(_measure(services))


async def _measure(services: Services) -> list[str]:
    asked = {
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": _NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
    }
    body = json.dumps(asked).encode()
    rendered = json.loads(await Connection(services.render).post(CHAT_RENDER, body))
    direct_body = json.dumps(rendered | {"stream": True}).encode()
    direct, through = [], []
    for _ in range(_REPEATS + 1):
        direct.append(await _times(services.generate, GENERATE, direct_body))
        through.append(await _times(services.gateway, CHAT, body))
    (first, total), (first_through, total_through) = map(_medians, (direct, through))
    gone = [await _gone_ms(services, body) for _ in range(5)]
    return [
        f"| split: {_NUM_TOKENS} tokens with top-5, over generate alone "
        f"| {total_through / total:.3f} times |",
        f"| split: added to the first token | {(first_through - first) * 1e3:.1f} ms |",
        f"| split: client gone until its KV blocks are free | {statistics.median(gone):.0f} ms, "
        f"at most {max(gone):.0f} |",
    ]


async def _times(base: str, path: str, body: bytes) -> tuple[float, float]:
    """Seconds to the first event and to the end of a stream."""
    start = time.perf_counter()
    times = await Connection(base).event_times(path, body)
    return times[0] - start, times[-1] - start


def _medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """Of all but the first run."""
    firsts, totals = zip(*runs[1:], strict=True)
    return statistics.median(firsts), statistics.median(totals)


async def _gone_ms(services: Services, body: bytes) -> float:
    """From the moment a client leaves a long answer until generate has freed what it held."""
    connection = Connection(services.gateway)
    long = json.dumps(json.loads(body) | {"max_tokens": 2000}).encode()
    await connection.first_event(CHAT, long)
    start = time.perf_counter()
    connection.abort()
    while await _gauge(services.generate, "running"):
        pass
    return (time.perf_counter() - start) * 1e3


async def _gauge(base: str, name: str) -> float:
    page = (await Connection(base).get("/metrics")).decode()
    (value,) = re.findall(rf"^triptych_generate_{name} (\S+)$", page, re.MULTILINE)
    return float(value)


@contextlib.contextmanager
def _services(threads: int, dtype: str) -> Iterator[Services]:
    ports = ("--http-port=0", "--grpc-port=0")
    with contextlib.ExitStack() as stack:
        flags = (f"--threads={threads}", f"--dtype={dtype}", *ports)
        generate = started(stack, "triptych_cli", "generate", *flags)
        render = started(stack, "triptych_cli", "render", *ports)
        derender = started(stack, "triptych_cli", "derender", *ports)
        links = (f"--render={render.grpc}", f"--generate={generate.grpc}")
        gateway = started(
            stack,
            "triptych_cli",
            "gateway",
            *links,
            f"--derender={derender.grpc}",
            "--http-port=0",
        )
        yield Services(gateway.http, render.http, generate.http)
