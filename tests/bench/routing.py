"""Prefix affinity against round robin: hit rate, balance and waiting under a skewed workload.

The gateway's own choice (``balance``) over workers that are simulated in time: each has an LRU
cache of KV blocks, computes prompts one after the other at a constant rate, and then writes.
"""

import functools
import heapq
import itertools
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from triptych.wire import GenerateRequest, SamplingParams
from triptych_gateway.balance import BLOCK_SIZE, by_prefix, least_loaded, prefix_key
from triptych_gateway.ring import Ring

NUM_WORKERS = 8
NUM_REQUESTS = 20_000
#: KV blocks of a worker's cache; prompt tokens a second; seconds of an output token.
CACHE_BLOCKS, PREFILL_RATE, TOKEN_S = 1_500, 8_000.0, 0.02
#: System prompts are used as 1, 1/2, 1/3 … to this power; five each begin with the same tokens.
ZIPF, NUM_SYSTEMS, NUM_PER_FAMILY, FAMILY_LEN = 1.0, 250, 5, 48
SYSTEM_LEN, USER_LEN, OUTPUT_LEN = (100, 2_000), (20, 300), (30, 300)


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """Implements ``balance.Loaded``; times are seconds of the simulation."""

    address: str
    load: int = 0
    capacity: int = 1
    is_full: bool = False
    free_at: float = 0.0
    busy_s: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def serve(self, now: float, prompt: Sequence[int]) -> tuple[float, int]:
        """When the first token comes, and how many of the prompt's tokens were in the cache."""
        num_hit = self._look_up(prompt)
        seconds = (len(prompt) - num_hit) / PREFILL_RATE
        self.free_at = max(now, self.free_at) + seconds
        self.busy_s += seconds
        return self.free_at, num_hit

    def _look_up(self, prompt: Sequence[int]) -> int:
        hashes = list(
            itertools.accumulate(
                (hash(tuple(prompt[at : at + BLOCK_SIZE])) for at in _block_starts(prompt)),
                lambda parent, block: hash((parent, block)),
            )
        )
        found = list(itertools.takewhile(self.cache.__contains__, hashes))
        for each in hashes:
            self.cache[each] = None
            self.cache.move_to_end(each)
        while len(self.cache) > CACHE_BLOCKS:
            self.cache.popitem(last=False)
        return min(len(found) * BLOCK_SIZE, len(prompt) - 1)


Choose = Callable[[list[SimulatedWorker], GenerateRequest], SimulatedWorker]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one policy: share of prompt tokens found, seconds of prefill, seconds to first tokens."""

    hit_rate: float
    mean_busy_s: float
    most_busy_s: float
    median_s: float
    p99_s: float


def arrivals(rate: float, seed: int) -> list[tuple[float, GenerateRequest, int]]:
    """Time, request and output length of each, ``rate`` requests a second."""
    draw = random.Random(seed)
    systems = [_system_prompt(draw, index) for index in range(NUM_SYSTEMS)]
    weights = [1 / (rank + 1) ** ZIPF for rank in range(NUM_SYSTEMS)]
    chosen = draw.choices(systems, weights, k=NUM_REQUESTS)
    now, listed = 0.0, []
    for system in chosen:
        now += draw.expovariate(rate)
        prompt = system + _tokens(draw, draw.randint(*USER_LEN))
        request = GenerateRequest(token_ids=prompt, sampling_params=SamplingParams())
        listed.append((now, request, draw.randint(*OUTPUT_LEN)))
    return listed


def simulate(choose: Choose, requests: list[tuple[float, GenerateRequest, int]]) -> Outcome:
    workers = [SimulatedWorker(f"10.0.0.{index}:9002") for index in range(NUM_WORKERS)]
    ends: list[tuple[float, int]] = []
    num_hit, waits = 0, []
    for now, request, num_output in requests:
        while ends and ends[0][0] <= now:
            workers[heapq.heappop(ends)[1]].load -= 1
        worker = choose(workers, request)
        worker.load += 1
        first, hit = worker.serve(now, request.token_ids)
        heapq.heappush(ends, (first + num_output * TOKEN_S, workers.index(worker)))
        num_hit += hit
        waits.append(first - now)
    busy = [worker.busy_s for worker in workers]
    return Outcome(
        hit_rate=num_hit / sum(len(request.token_ids) for _, request, _ in requests),
        mean_busy_s=statistics.mean(busy),
        most_busy_s=max(busy),
        median_s=statistics.median(waits),
        p99_s=statistics.quantiles(waits, n=100)[-1],
    )


def policies() -> dict[str, Choose]:
    turns = itertools.count()
    return {
        "round robin": lambda workers, _: workers[next(turns) % len(workers)],
        "least outstanding": lambda workers, _: least_loaded(workers),
        "prefix affinity": _by_prefix,
    }


def run(rates: Sequence[float] = (40.0, 90.0)) -> str:
    """The table for docs/benchmarks.md."""
    columns = ["requests/s", "policy", "hit rate", "prefill of a worker, mean", "busiest"]
    columns += ["first token, median", "p99"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for rate in rates:
        requests = arrivals(rate, seed=1)
        for name, choose in policies().items():
            found = simulate(choose, requests)
            lines.append(
                f"| {rate:g} | {name} | {found.hit_rate:.1%} "
                f"| {found.mean_busy_s:.0f} s | {found.most_busy_s:.0f} s "
                f"| {found.median_s * 1000:.0f} ms | {found.p99_s * 1000:.0f} ms |"
            )
    return "\n".join(lines)


def _by_prefix(workers: list[SimulatedWorker], request: GenerateRequest) -> SimulatedWorker:
    key = prefix_key(request)
    if key is None:
        return least_loaded(workers)
    return by_prefix(_ring_of(*workers), frozenset(workers), key)


@functools.lru_cache(1)
def _ring_of(*workers: SimulatedWorker) -> Ring[SimulatedWorker]:
    return Ring(workers)


def _system_prompt(draw: random.Random, index: int) -> list[int]:
    family = random.Random(index % (NUM_SYSTEMS // NUM_PER_FAMILY))
    return _tokens(family, FAMILY_LEN) + _tokens(draw, draw.randint(*SYSTEM_LEN))


def _tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(50_000), k=count)


def _block_starts(prompt: Sequence[int]) -> range:
    return range(0, len(prompt) - BLOCK_SIZE + 1, BLOCK_SIZE)
