"""Replicas in this process that a test fails as it likes; their probes and addresses too."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from triptych.errors import TriptychError, UnavailableError
from triptych.logprobs import Logprobs, pack_logprobs
from triptych.mailbox import Taker
from triptych.wire import (
    ChoiceDelta,
    GenerateDelta,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    WorkerLoad,
)
from triptych_gateway.links import GenerateLink
from triptych_gateway.replica import Connection
from triptych_gateway.replicas import ReplicaSet, WatchOptions

#: Hangs are found in a moment.
FAST = WatchOptions(
    resolve_every_s=0.02, probe_every_s=0.02, hang_timeout_s=0.15, stall_timeout_s=0.1
)


def info(**changes: Any) -> ModelInfo:
    """What a worker says of itself: idle, unless ``changes`` say otherwise."""
    load = WorkerLoad(
        num_running=0, num_waiting=0, num_free_blocks=100, num_blocks=100, num_steps=0
    )
    known: dict[str, Any] = {"model": "m", "max_model_len": 99, "vocab_size": 999, "dtype": "f"}
    known |= {"device": "cpu", "max_logprobs": 5, "load": load, "can_resume": True}
    return ModelInfo(**{**known, **changes})


@dataclass(slots=True)
class Fault:
    """After ``num_deltas`` deltas: an error, silence, or (None) the end of the stream."""

    num_deltas: int
    error: TriptychError | None = None
    is_silence: bool = False


@dataclass(slots=True, eq=False)
class FakeWorker:
    """A generate worker whose ids are a function of prompt, seed, choice and position.

    ``faults``: one for each request from the first on; later ones run to their end.
    ``probe_error`` and ``is_silent``: how probes end. ``said``: what it says of itself.
    ``pause_s``: before each delta.
    """

    name: str = "w"
    faults: list[Fault] = field(default_factory=list)
    said: ModelInfo = field(default_factory=info)
    probe_error: Exception | None = None
    is_silent: bool = False
    pause_s: float = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    num_open: int = 0
    is_closed: bool = False

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else None
        self.num_open += 1
        try:
            for number, delta in enumerate(deltas_of(request)):
                if fault is not None and number == fault.num_deltas:
                    if fault.is_silence:
                        self.is_silent = True
                        await asyncio.Event().wait()
                    if fault.error is not None:
                        raise fault.error
                    return
                await asyncio.sleep(self.pause_s)
                if taker is None or not taker(delta):
                    yield delta
        finally:
            self.num_open -= 1

    async def info(self) -> ModelInfo:
        return self.said

    async def probe(self) -> ModelInfo:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.probe_error is not None:
            raise self.probe_error
        return self.said

    async def close(self) -> None:
        self.is_closed = True

    def connection(self) -> Connection[GenerateLink]:
        return Connection(self, self.probe, self.close)


def deltas_of(request: GenerateRequest) -> list[GenerateDelta]:
    """What a worker sends for ``request``, a token of every choice at a time.

    Choice ``i`` has ``max_tokens - i`` tokens, so choices end at different times. The prompt's
    logprobs and ``cached_tokens`` come with the first delta, as from generate.
    """
    params = request.sampling_params
    prompt = request.token_ids[: request.prompt_len]
    choices = range(request.choice_index, request.choice_index + params.n)
    lengths = {index: max(1, (params.max_tokens or 1) - index) for index in choices}
    deltas, first = [], request.resume_from
    for position in range(first, max(lengths.values())):
        parts = [
            _choice(prompt, params, index, position, is_last=position + 1 == lengths[index])
            for index in choices
            if position < lengths[index]
        ]
        scores_prompt = position == 0 == request.choice_index and params.prompt_logprobs is not None
        deltas.append(
            GenerateDelta(
                request_id=request.request_id or "",
                choices=parts,
                prompt_logprobs=_scores(prompt) if scores_prompt else None,
                cached_tokens=len(prompt) // 2 if position == first else 0,
            )
        )
    return deltas


def _choice(
    prompt: Sequence[int], params: SamplingParams, index: int, position: int, *, is_last: bool
) -> ChoiceDelta:
    token_id = hash((*prompt, params.seed, index, position)) % 997
    return ChoiceDelta(
        index=index,
        token_ids=[token_id],
        logprobs=_scores([token_id]) if params.logprobs is not None else None,
        finish_reason="length" if is_last else None,
    )


def _scores(token_ids: Sequence[int]) -> Logprobs:
    return pack_logprobs([[(each, -each / 8, 1)] for each in token_ids])


def unreachable() -> UnavailableError:
    return UnavailableError("it is not reachable", retry_after_s=1)


class Directory:
    """Addresses that a test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: list[str] | None = list(addresses)

    async def find(self, address: str) -> list[str]:
        if self.addresses is None:
            raise OSError(f"{address}: the name server is down")
        return list(self.addresses)


@asynccontextmanager
async def fake_workers(
    *workers: FakeWorker, options: WatchOptions = FAST, directory: Directory | None = None
) -> AsyncIterator[ReplicaSet[GenerateLink]]:
    """A watched set of ``workers``, whose addresses are their names."""
    by_name = {worker.name: worker for worker in workers}
    replicas: ReplicaSet[GenerateLink] = ReplicaSet(
        "generate",
        ["fleet:1"],
        connect=lambda address: by_name[address].connection(),
        options=options,
        find=(directory or Directory(*by_name)).find,
    )
    async with replicas.watched():
        yield replicas


async def until_state(replicas: ReplicaSet[Any], **wanted: int) -> None:
    """Return when so many replicas are in each of the states; the test's timeout bounds it."""
    while dict(replicas.states()) != wanted:
        await replicas.news(1)


async def until(is_true: Callable[[], bool]) -> None:
    """Return when other tasks have made ``is_true`` true; the test's timeout bounds it."""
    while not is_true():  # noqa: ASYNC110  # the fakes have no events to wait for
        await asyncio.sleep(0)
