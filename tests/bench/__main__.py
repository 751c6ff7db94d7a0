"""``python -m bench``: measure a running stack, in turn with a peer where one is given.

A peer is any server with vLLM's scale-out endpoints on one address. Every figure is a median; the
ratio is ours over the peer's, measured in turn in the same run.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import crowd, overload, routing, scale, split, split_model
from bench.bound import bound, labels_row
from bench.client import Connection, closed_loop
from bench.wire_size import wire_cost
from bench.workloads import (
    CHAT_DERENDER,
    CHAT_RENDER,
    GENERATE,
    chat_body,
    chunk_body,
    derender_body,
    generate_body,
    parsed_chunk_body,
    reasoned_ids,
)
from support.stack import running_service, running_stack
from triptych.models import ensure

#: No prompt comes twice, nor in another run on the same peer: prefix caches would find it.
_FIRST_SEED = secrets.randbits(40)
#: Threads of the server that was measured last spin on: vLLM's worker takes a core for 0.7 s.
_PAUSE_S = 2

_SCALE_PLOT = Path(__file__).parents[2] / "docs" / "scale.svg"

Measure = Callable[["Target", int], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server's panels are."""

    render: str
    generate: str
    derender: str
    parsing_derender: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table; higher is better unless ``unit`` is s or x."""

    name: str
    unit: str
    measure: Measure


async def render_rate(target: Target, run: int, *, words: int, count: int) -> float:
    bodies = [chat_body(words, run * count + index) for index in range(count)]
    return count / await closed_loop(target.render, CHAT_RENDER, bodies, 8)


async def derender_rate(target: Target, run: int, *, top: int | None, count: int) -> float:
    return count / await closed_loop(
        target.derender, CHAT_DERENDER, [derender_body(512, top)] * count, 4
    )


async def output_rate(target: Target, run: int, *, at_once: int, logprobs: int | None) -> float:
    first = _FIRST_SEED + ((run * 100 + at_once) * 100 + (logprobs or 0)) * 100
    bodies = [generate_body(64, 64, first + index, logprobs) for index in range(at_once)]
    return 64 * at_once / await closed_loop(target.generate, GENERATE, bodies, at_once)


async def chunk_growth(target: Target, run: int) -> float:
    """How much longer 512 chunks take than 256; 2 = the cost per chunk is constant."""
    seconds = [await _stream_seconds(target, num_chunks) for num_chunks in (256, 512)]
    return seconds[1] / seconds[0]


async def parsed_growth(target: Target, run: int) -> float:
    """The same for a stream with a response template."""
    seconds = [await parsed_stream(target, run, num_chunks) for num_chunks in (256, 512)]
    return seconds[1] / seconds[0]


async def parsed_stream(target: Target, run: int, num_chunks: int) -> float:
    """Seconds of a stream with a response template, one call a chunk."""
    connection, state = Connection(target.parsing_derender), None
    ids = reasoned_ids(ensure("smollm2").directory / "tokenizer.json", num_chunks)
    start = time.perf_counter()
    for position, token_id in enumerate(ids):
        body = parsed_chunk_body(token_id, state, is_last=position == num_chunks - 1)
        state = json.loads(await connection.post(CHAT_DERENDER, body))["stream_state"]
    connection.close()
    return time.perf_counter() - start


async def _stream_seconds(target: Target, num_chunks: int) -> float:
    connection, state = Connection(target.derender), None
    start = time.perf_counter()
    for index in range(num_chunks):
        body = chunk_body(index, num_chunks, state)
        state = json.loads(await connection.post(CHAT_DERENDER, body))["stream_state"]
    connection.close()
    return time.perf_counter() - start


async def first_token(target: Target, run: int) -> float:
    body = json.loads(generate_body(1024, 2, _FIRST_SEED + run)) | {"stream": True}
    start = time.perf_counter()
    times = await Connection(target.generate).event_times(GENERATE, json.dumps(body).encode())
    return times[0] - start


def cases() -> list[Case]:
    listed = [
        Case("render, short chat", "req/s", lambda t, r: render_rate(t, r, words=60, count=400)),
        Case("render, long chat", "req/s", lambda t, r: render_rate(t, r, words=2950, count=60)),
        Case("derender 512, top-20", "req/s", lambda t, r: derender_rate(t, r, top=20, count=20)),
        Case("derender 512, plain", "req/s", lambda t, r: derender_rate(t, r, top=None, count=200)),
    ]
    listed.append(Case("derender, 512 chunks over 256", "x", chunk_growth))
    listed.append(Case("derender with a parser, 512 chunks over 256", "x", parsed_growth))
    listed.append(
        Case("derender with a parser, 512 chunks", "s", lambda t, r: parsed_stream(t, r, 512))
    )
    for logprobs in (None, 20):
        for at_once in (1, 4, 16):
            name = f"generate, {at_once} at once, " + ("top-20" if logprobs else "no logprobs")
            listed.append(Case(name, "tok/s", _output_case(at_once, logprobs)))
    listed.append(Case("first token of 1024", "s", first_token))
    return listed


def _output_case(at_once: int, logprobs: int | None) -> Measure:
    return lambda target, run: output_rate(target, run, at_once=at_once, logprobs=logprobs)


async def run_case(case: Case, targets: list[Target], repeats: int) -> list[float]:
    """The median per target, measured in turn; one warm-up each is not counted."""
    values: list[list[float]] = [[] for _ in targets]
    for run in range(repeats + 1):
        for index, target in enumerate(targets):
            await asyncio.sleep(_PAUSE_S)
            value = await case.measure(target, run)
            if run:
                values[index].append(value)
    return [statistics.median(each) for each in values]


def main() -> int:
    arguments = parse()
    if arguments.only in "routing":  # simulated: it needs no stack
        print(routing.run() + "\n", flush=True)
    if any(arguments.only in name for name in ("scale", *(case.name for case in cases()))):
        measure_running(arguments)
    if arguments.only in "overload":
        print(overload.run(arguments.seconds), flush=True)
    if arguments.only in "crowd":
        print(crowd.run(), flush=True)
    if arguments.only in "split":
        for text in (*split.run(), *split_model.run(arguments.threads, arguments.dtype)):
            print(text, flush=True)
    if arguments.only in "wire":
        size, ms = wire_cost()
        print(f"| wire, 512 tokens with top-20 | {size:,} bytes, {ms:.2f} ms | | |", flush=True)
    if arguments.only in "bound":
        for rows in (1, 4, 16):
            print(bound(rows, arguments.dtype).row(), flush=True)
    if arguments.only in "labels":
        print(labels_row(arguments.dtype), flush=True)
    return 0


def measure_running(arguments: argparse.Namespace) -> None:
    """The rows that need a stack of ours, and the peer where one is given."""
    with ours(arguments) as target:
        targets = [target]
        if arguments.peer:
            parsing = arguments.peer_parser or arguments.peer
            targets.append(Target(arguments.peer, arguments.peer, arguments.peer, parsing))
        print("| measured | ours | peer | ratio |\n|---|---|---|---|", flush=True)
        for case in cases():
            if arguments.only in case.name:
                medians = asyncio.run(run_case(case, targets, arguments.repeats))
                print(row(case, medians), flush=True)
        if arguments.only in "scale":
            print("\n" + scale.run(target.generate, _SCALE_PLOT), flush=True)


def row(case: Case, medians: list[float]) -> str:
    ours_text = f"{medians[0]:.4g} {case.unit}"
    if len(medians) == 1:
        return f"| {case.name} | {ours_text} | | |"
    ratio = medians[0] / medians[1]
    return f"| {case.name} | {ours_text} | {medians[1]:.4g} {case.unit} | {ratio:.2f} |"


@contextlib.contextmanager
def ours(arguments: argparse.Namespace) -> Iterator[Target]:
    """A stack started here, on all cores, and a derender that parses."""
    dtype = f"--dtype={arguments.dtype}"
    with (
        running_stack(dtype, threads=arguments.threads, log_level="warning") as stack,
        running_service("derender", "--response-template=think") as parsing,
    ):
        yield Target(stack.render, stack.generate, stack.derender, parsing)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--peer", help="base URL of a server to measure in turn with ours")
    parser.add_argument("--peer-parser", help="base URL of a peer that parses <think> reasoning")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--only", default="", help="measure only the rows whose name holds this")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
