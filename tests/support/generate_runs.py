"""Whole answers of a generate service in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.logprobs import Logprobs
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest, SamplingParams, join_deltas
from triptych_generate.options import EngineOptions
from triptych_generate.service import GenerateService


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's joined deltas."""

    choices: list[ChoiceDelta]
    prompt_logprobs: Logprobs | None
    deltas: list[GenerateDelta]

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> Logprobs:
        """Of the first choice, which must have some."""
        logprobs = self.choices[0].logprobs
        assert logprobs is not None
        return logprobs


def bits(given: Answer) -> tuple[Any, ...]:
    """Everything a client sees; floats came from float32, so equal floats are equal bits."""
    return (
        [(c.index, c.token_ids, _columns(c.logprobs), c.finish_reason) for c in given.choices],
        _columns(given.prompt_logprobs),
    )


def _columns(logprobs: Logprobs | None) -> Any:
    return logprobs and (logprobs.counts, logprobs.token_ids, logprobs.logprobs, logprobs.ranks)


@asynccontextmanager
async def running_service(model_dir: Path, **options: Any) -> AsyncIterator[GenerateService]:
    """A started service of the model ``tiny``; stopped at the end."""
    service = await asyncio.to_thread(load_service, model_dir, **options)
    service.start()
    try:
        yield service
    finally:
        await service.stop()


def load_service(model_dir: Path, **options: Any) -> GenerateService:
    defaults = {"served_model_name": "tiny", "kv_cache_bytes": 1 << 22, "num_threads": 1}
    return GenerateService.load(EngineOptions(model_dir=model_dir, **{**defaults, **options}))


def ask(token_ids: Iterable[int], **params: Any) -> GenerateRequest:
    """A request; greedy unless ``temperature`` says otherwise."""
    sampling_params = SamplingParams(**{"temperature": 0.0, **params})
    return GenerateRequest(token_ids=list(token_ids), sampling_params=sampling_params)


async def answer(service: GenerateService, request: GenerateRequest) -> Answer:
    deltas = [delta async for delta in service.generate(request)]
    choices, prompt_logprobs = join_deltas(deltas)
    return Answer(choices, prompt_logprobs, deltas)


async def answers(service: GenerateService, requests: list[GenerateRequest]) -> list[Answer]:
    """All requests at once."""
    return await asyncio.gather(*(answer(service, request) for request in requests))


async def until(is_true: Callable[[], bool]) -> None:
    """Return when the engine's thread has made ``is_true`` true; the test's timeout bounds it."""
    while not is_true():  # noqa: ASYNC110  # the engine's figures have no event to wait for
        await asyncio.sleep(0.001)
