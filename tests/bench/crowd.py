"""Past one room: a gateway, 200 scripted workers, 2,000 open streams; then 50 workers vanish.

Linux only: memory and CPU time of other processes are read from /proc.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import resource
import signal
import statistics
import time
from pathlib import Path

from bench.client import Connection
from bench.routing import SimulatedWorker
from bench.split import CHAT, Started, cpu_s, started
from bench.workloads import WORDS
from triptych.wire import GenerateRequest, SamplingParams
from triptych_gateway.balance import by_prefix, prefix_key
from triptych_gateway.ring import Ring

NUM_WORKERS, NUM_PROCESSES, NUM_STREAMS = 200, 4, 2_000
STEP_MS, NUM_TOKENS = 1_000, 45
#: Streams that are begun at a time, and seconds after the last one until workers vanish.
_AT_ONCE, _SETTLE_S = 64, 8.0
_NUM_ROUTED = 2_000
#: Sizes of the fleets among which requests are routed.
NUM_ROUTED_TO = (20, 200, 1_000)

#: When a stream's events came, and the last one.
_Answer = tuple[list[float], bytes]


def run() -> str:
    """Rows of a table."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 3 * NUM_STREAMS
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    with contextlib.ExitStack() as stack:
        ports = NUM_WORKERS // NUM_PROCESSES
        flags = (f"--step-ms={STEP_MS}", f"--ports={ports}")
        workers = [started(stack, "bench.fast_worker", *flags) for _ in range(NUM_PROCESSES)]
        any_ports = ("--http-port=0", "--grpc-port=0")
        render = started(stack, "triptych_cli", "render", *any_ports)
        derender = started(stack, "triptych_cli", "derender", *any_ports)
        gateway = started(
            stack,
            *("triptych_cli", "gateway", "--http-port=0", "--max-requests=4000"),
            f"--render={render.grpc}",
            f"--derender={derender.grpc}",
            "--generate=" + ",".join(each.grpcs for each in workers),
        )
        rows = asyncio.run(_measure(gateway, derender, workers[0]))
    rows += [
        (f"routing among {count:,}, of a request", f"{_routing_us(count):.0f} µs")
        for count in NUM_ROUTED_TO
    ]
    return "\n".join(f"| crowd: {name} | {value} | | |" for name, value in rows)


async def _measure(gateway: Started, derender: Started, victim: Started) -> list[tuple[str, str]]:
    await _until_all_are_up(gateway)
    processes = {"gateway": gateway.pid, "derender": derender.pid}
    before = {name: _resident_kib(pid) for name, pid in processes.items()}
    streams = await _begin(gateway.http)
    await asyncio.sleep(_SETTLE_S / 2)
    memory = {name: _resident_kib(pid) - before[name] for name, pid in processes.items()}
    cpu = {name: cpu_s(pid) for name, pid in processes.items()}
    await asyncio.sleep(_SETTLE_S / 2)
    shares = {name: (cpu_s(pid) - cpu[name]) / (_SETTLE_S / 2) for name, pid in processes.items()}
    killed_at = time.perf_counter()
    os.kill(victim.pid, signal.SIGKILL)
    answers = await asyncio.gather(*streams)
    gaps = sorted(_gap_s(times, killed_at) for times, _ in answers)
    num_whole = sum(last == b"[DONE]" for _, last in answers)
    late = [gap for gap in gaps if gap > 1.5 * STEP_MS / 1000]
    resumes = await _metric(gateway, 'triptych_gateway_resumes_total{panel="generate"}')
    rows = [
        (f"{name}, with {NUM_WORKERS} workers and no stream", f"{before[name] / 1024:.0f} MiB")
        for name in processes
    ]
    rows += [
        (f"{name}, a stream", f"{grown / NUM_STREAMS:.1f} KiB") for name, grown in memory.items()
    ]
    rows += [
        (f"{name}, {NUM_STREAMS:,} streams of a token a second", f"{share * 100:.0f} % of a core")
        for name, share in shares.items()
    ]
    rows += [
        ("workers gone at once", f"{NUM_WORKERS // NUM_PROCESSES}"),
        ("streams that went on elsewhere", f"{resumes:.0f}"),
        ("streams that ended whole", f"{num_whole:,} of {NUM_STREAMS:,}"),
        ("longest pause of a stream, median and slowest", f"{_median_and_most(gaps)} s"),
        ("of those above a step and a half", f"{_median_and_most(late)} s" if late else "none"),
    ]
    return rows


async def _begin(address: str) -> "list[asyncio.Task[_Answer]]":
    """Streams that have all been begun, few at a time."""
    room = asyncio.Semaphore(_AT_ONCE)
    begun = asyncio.Semaphore(0)

    async def ask(seed: int) -> _Answer:
        async with room:
            connection = Connection(address)
            await connection.first_event(CHAT, _body(seed))
        begun.release()
        return await connection.rest_of_events()

    tasks = [asyncio.create_task(ask(seed)) for seed in range(NUM_STREAMS)]
    for _ in tasks:
        await begun.acquire()
    return tasks


async def _until_all_are_up(gateway: Started) -> None:
    name = 'triptych_gateway_replicas{panel="generate",state="up"}'
    for _ in range(600):
        if await _metric(gateway, name) == NUM_WORKERS:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the workers are not up after a minute")


async def _metric(gateway: Started, name: str) -> float:
    page = (await Connection(gateway.http).get("/metrics")).decode()
    return sum(float(line.split()[1]) for line in page.splitlines() if line.startswith(name + " "))


def _body(seed: int) -> bytes:
    text = " ".join(random.Random(seed).choices(WORDS.split(), k=90))
    asked = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": NUM_TOKENS,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
    }
    return json.dumps(asked).encode()


def _gap_s(times: list[float], since: float) -> float:
    """The longest time between two events of which the later came after ``since``."""
    return max(
        (later - earlier for earlier, later in itertools.pairwise(times) if later > since),
        default=0.0,
    )


def _median_and_most(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}, {max(values):.2f}"


def _routing_us(num_workers: int) -> float:
    """Microseconds to hash a prompt and to choose among workers with some load."""
    rng = random.Random(0)
    workers = [
        SimulatedWorker(f"10.0.{each // 250}.{each % 250}:9002", load=rng.randrange(20))
        for each in range(num_workers)
    ]
    ring, candidates = Ring(workers), frozenset(workers)
    requests = [
        GenerateRequest(
            token_ids=[rng.randrange(50_000) for _ in range(300)], sampling_params=SamplingParams()
        )
        for _ in range(_NUM_ROUTED)
    ]
    start = time.perf_counter()
    for request in requests:
        key = prefix_key(request)
        assert key is not None, "a prompt of 300 tokens has whole blocks"
        by_prefix(ring, candidates, key)
    return (time.perf_counter() - start) / _NUM_ROUTED * 1e6


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
