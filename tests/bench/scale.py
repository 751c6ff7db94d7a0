"""How throughput, memory and the cost of a token grow with requests at once and with context."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from tqdm import tqdm

from bench.client import Connection, closed_loop
from bench.workloads import GENERATE, generate_body

AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 512, 1024, 2048, 4096, 8000)
_OUTPUT = 32


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at once: output tokens per second of all, and the server's memory in MiB."""

    at_once: int
    rate: float
    memory: float


@dataclass(frozen=True, slots=True)
class Context:
    """One request alone: its prompt's tokens, seconds to the first token, ms for each later one."""

    prompt: int
    first: float
    each_ms: float
    memory: float


async def measure(base: str) -> tuple[list[Load], list[Context]]:
    """Both series, each point once after a warm-up of the same kind."""
    progress = tqdm(total=len(AT_ONCE) + len(CONTEXTS), desc="scale", disable=None)
    loads, contexts = [], []
    await _load(base, 4, 0)
    for index, at_once in enumerate(AT_ONCE, start=1):
        loads.append(await _load(base, at_once, index))
        progress.update()
    for index, prompt in enumerate(CONTEXTS):
        contexts.append(await _context(base, prompt, index))
        progress.update()
    progress.close()
    return loads, contexts


async def _load(base: str, at_once: int, run: int) -> Load:
    bodies = [generate_body(64, 64, run * 1000 + index) for index in range(at_once)]
    seconds = await closed_loop(base, GENERATE, bodies, at_once)
    return Load(at_once, 64 * at_once / seconds, await _memory(base))


async def _context(base: str, prompt: int, run: int) -> Context:
    body = json.loads(generate_body(prompt, _OUTPUT, 90_000 + run)) | {"stream": True}
    start = time.perf_counter()
    times = await Connection(base).event_times(GENERATE, json.dumps(body).encode())
    each = (times[_OUTPUT - 1] - times[0]) / (_OUTPUT - 1)
    return Context(prompt, times[0] - start, each * 1000, await _memory(base))


async def _memory(base: str) -> float:
    text = (await Connection(base).get("/metrics")).decode()
    line = next(x for x in text.splitlines() if x.startswith("process_resident_memory_bytes "))
    return float(line.split()[1]) / 2**20


def table(loads: list[Load], contexts: list[Context]) -> str:
    """Two Markdown tables."""
    lines = ["| at once | tok/s | each, tok/s | memory, MiB |", "|---|---|---|---|"]
    lines += [
        f"| {x.at_once} | {x.rate:.0f} | {x.rate / x.at_once:.1f} | {x.memory:,.0f} |"
        for x in loads
    ]
    lines += ["", "| prompt tokens | first token, s | prompt tok/s | each later token, ms |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {x.prompt:,} | {x.first:.2f} | {x.prompt / x.first:,.0f} | {x.each_ms:.1f} |"
        for x in contexts
    ]
    return "\n".join(lines)


def plot(loads: list[Load], contexts: list[Context], path: Path) -> None:
    """Throughput over requests at once, and time per token over context, as SVG."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([x.at_once for x in loads], [x.rate for x in loads], marker="o")
    left.set(xlabel="requests at once", ylabel="output tokens per second", ylim=0)
    left.set_xscale("log", base=2)
    left.set_xticks(AT_ONCE, [str(x) for x in AT_ONCE])
    right.plot([x.prompt for x in contexts], [x.each_ms for x in contexts], marker="o")
    right.set(xlabel="tokens of context", ylabel="ms per output token, alone", ylim=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path)


def run(base: str, path: Path) -> str:
    """Measure the server at ``base``, draw into ``path``, give the tables."""
    loads, contexts = asyncio.run(measure(base))
    plot(loads, contexts, path)
    return table(loads, contexts)
