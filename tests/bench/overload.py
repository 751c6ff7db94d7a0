"""Ten times more requests than the stack can serve: what it still does, and how it says no."""

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.client import Connection
from bench.workloads import WORDS
from support.stack import running_stack

COMPLETIONS = "/v1/completions"
#: Requests in work: half of what a step may hold, so that nothing that was admitted waits.
ROOM = 32
#: How many times the capacity is asked for.
FACTOR = 10
_OUTPUT = 16
_PEAK_S = 7.0
_MEMORY_EVERY_S = 5.0


@dataclass(slots=True)
class Tally:
    """What clients saw. Seconds of each refusal; answers that were neither whole nor refused."""

    num_whole: int = 0
    num_unwell: int = 0
    refusals_s: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def run(seconds: float) -> str:
    """Measure a stack that is started here; rows of a table."""
    with running_stack(f"--max-requests={ROOM}", threads=1, log_level="warning") as stack:
        return asyncio.run(_measure(stack.gateway, stack.generate, seconds))


async def _measure(gateway: str, generate: str, seconds: float) -> str:
    await _closed_loop(gateway, 1.0)
    peak = await _closed_loop(gateway, _PEAK_S)
    tally, length = await _open_loop(gateway, generate, FACTOR * peak, seconds)
    rate = tally.num_whole / length
    refusals = sorted(tally.refusals_s)
    rows = [
        ("peak, as many at once as there is room for", f"{peak * _OUTPUT:.1f} tok/s"),
        (f"{FACTOR} times that asked for, {seconds:.0f} s", f"{rate * _OUTPUT:.1f} tok/s"),
        ("of the peak", f"{100 * rate / peak:.1f} %"),
        ("admitted and finished", f"{tally.num_whole:,}"),
        ("admitted and not finished", f"{tally.num_unwell:,}"),
        ("refused with 429 and Retry-After", f"{len(refusals):,}"),
        ("a refusal, median", f"{statistics.median(refusals) * 1000:.1f} ms"),
        ("a refusal, 99 of 100", f"{refusals[len(refusals) * 99 // 100] * 1000:.1f} ms"),
        ("a refusal, slowest", f"{refusals[-1] * 1000:.1f} ms"),
        ("refusals slower than 50 ms", f"{sum(each > 0.05 for each in refusals):,}"),
        ("memory of both processes, MiB", " ".join(f"{each:,.0f}" for each in tally.memory)),
    ]
    return "\n".join(f"| overload: {name} | {value} | | |" for name, value in rows)


async def _closed_loop(gateway: str, seconds: float) -> float:
    """Whole answers a second, with as many clients as there is room for."""
    tally = Tally()
    end = time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < end:
            await _ask(gateway, tally)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(ROOM)))
    return tally.num_whole / (time.perf_counter() - start)


async def _open_loop(
    gateway: str, generate: str, rate: float, seconds: float
) -> tuple[Tally, float]:
    """Clients that come at ``rate`` a second, whatever becomes of the others; seconds it took.

    Time counts until the last answer, so what is left over at the end is part of the rate.
    """
    tally = Tally()
    watching = asyncio.create_task(_watch_memory((gateway, generate), tally))
    asking: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for _ in range(int(passed * rate) - tally_size(asking, tally)):
            asking.add(asyncio.create_task(_ask(gateway, tally)))
        await asyncio.sleep(0.005)
        asking = {task for task in asking if not task.done()}
    await asyncio.gather(*asking)
    length = time.perf_counter() - start
    watching.cancel()
    return tally, length


def tally_size(asking: set["asyncio.Task[None]"], tally: Tally) -> int:
    """Clients that have come."""
    return len(asking) + tally.num_whole + tally.num_unwell + len(tally.refusals_s)


async def _ask(gateway: str, tally: Tally) -> None:
    parts = urlsplit(gateway)
    prompt = " ".join(random.choices(WORDS.split(), k=12))
    body = json.dumps({"prompt": prompt, "max_tokens": _OUTPUT, "ignore_eos": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    seconds = time.perf_counter() - start
    writer.close()
    status = answer.partition(b"\r\n")[0]
    if b" 429 " in status and b"retry-after: " in answer:
        tally.refusals_s.append(seconds)
    elif b" 200 " in status and f'"completion_tokens":{_OUTPUT}'.encode() in answer:
        tally.num_whole += 1
    else:
        tally.num_unwell += 1


async def _watch_memory(services: tuple[str, ...], tally: Tally) -> None:
    while True:
        pages = [(await Connection(base).get("/metrics")).decode() for base in services]
        tally.memory.append(sum(map(_resident_bytes, pages)) / 2**20)
        await asyncio.sleep(_MEMORY_EVERY_S)


def _resident_bytes(page: str) -> float:
    line = next(x for x in page.splitlines() if x.startswith("process_resident_memory_bytes "))
    return float(line.split()[1])
