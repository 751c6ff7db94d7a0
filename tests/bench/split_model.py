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
from support.stack import running_stack

CHAT = "/v1/chat/completions"
_NUM_TOKENS = 64
_REPEATS = 13
#: The first token is asked for often, in short answers: steps vary by more than what is added.
_FIRST_REPEATS = 60
_FIRST_TOKENS = 2
#: Asked without a pause, generate's door takes a core from the step that is waited for.
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Services:
    """JSON addresses of a gateway and of two panels behind it."""

    gateway: str
    render: str
    generate: str


def run(threads: int, dtype: str) -> list[str]:
    """The rows of the table."""
    rows = []
    with _four_processes(threads, dtype) as services:
        rows += asyncio.run(_added("four processes", services))
        rows.append(asyncio.run(_freed(services)))
    if threads > 1:  # a core is left to the others, as beside a GPU
        with _four_processes(threads - 1, dtype) as services:
            rows += asyncio.run(_added("four processes, one engine thread less", services))
    with running_stack(f"--dtype={dtype}", threads=threads) as stack:
        services = Services(stack.gateway, stack.render, stack.generate)
        rows += asyncio.run(_added("triptych serve", services))
    return rows


async def _added(name: str, services: Services) -> list[str]:
    short = await _pairs(services, _FIRST_TOKENS, _FIRST_REPEATS)
    long = await _pairs(services, _NUM_TOKENS, _REPEATS)
    added = statistics.median(through.first - direct.first for direct, through in short)
    ratio = statistics.median(through.end / direct.end for direct, through in long)
    return [
        f"| split, {name}: {_NUM_TOKENS} tokens, top-5, over generate alone | {ratio:.3f} times |",
        f"| split, {name}: added to the first token | {added * 1e3:.1f} ms |",
    ]


async def _freed(services: Services) -> str:
    gone = [await _gone_ms(services) for _ in range(5)]
    return (
        f"| split: client gone until its KV blocks are free | {statistics.median(gone):.0f} ms, "
        f"at most {max(gone):.0f} |"
    )


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from a request to the first event of its stream, and to the last."""

    first: float
    end: float


async def _pairs(services: Services, num_tokens: int, repeats: int) -> list[tuple[Times, Times]]:
    """A chat at generate's own door and through the gateway, in turn, without the first pair."""
    through = _chat(num_tokens)
    rendered = json.loads(await Connection(services.render).post(CHAT_RENDER, through))
    direct = json.dumps(rendered | {"stream": True}).encode()
    pairs = [
        (
            await _times(services.generate, GENERATE, direct),
            await _times(services.gateway, CHAT, through),
        )
        for _ in range(repeats + 1)
    ]
    return pairs[1:]


def _chat(max_tokens: int) -> bytes:
    asked = {
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
    }
    return json.dumps(asked).encode()


async def _times(base: str, path: str, body: bytes) -> Times:
    start = time.perf_counter()
    times = await Connection(base).event_times(path, body)
    return Times(times[0] - start, times[-1] - start)


async def _gone_ms(services: Services) -> float:
    """From the moment a client leaves a long answer until generate has freed what it held."""
    connection = Connection(services.gateway)
    await connection.first_event(CHAT, _chat(2000))
    start = time.perf_counter()
    connection.abort()
    while await _gauge(services.generate, "running"):  # noqa: ASYNC110  # of another process
        await asyncio.sleep(_POLL_S)
    return (time.perf_counter() - start) * 1e3


async def _gauge(base: str, name: str) -> float:
    page = (await Connection(base).get("/metrics")).decode()
    (value,) = re.findall(rf"^triptych_generate_{name} (\S+)$", page, re.MULTILINE)
    return float(value)


@contextlib.contextmanager
def _four_processes(threads: int, dtype: str) -> Iterator[Services]:
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
