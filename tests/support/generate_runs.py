"""Whole answers of a generate service in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from support.net import listening
from triptych.logprobs import Logprobs
from triptych.rpc import open_channel
from triptych.v1 import generate_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest, SamplingParams, join_deltas
from triptych_generate.http import create_generate_app
from triptych_generate.options import EngineOptions
from triptych_generate.rpc import create_generate_rpc
from triptych_generate.runner import Runner, StepLogits
from triptych_generate.scheduler import Plan
from triptych_generate.service import GenerateService
from triptych_generate.setup import set_up
from triptych_generate.worker import Worker


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


@dataclass(frozen=True, slots=True)
class Doors:
    """Clients of a service's two front doors, over real sockets."""

    http: httpx.AsyncClient
    grpc: "generate_pb2_grpc.GenerateServiceAsyncStub"


@asynccontextmanager
async def front_doors(service: GenerateService) -> AsyncIterator[Doors]:
    """``service``, which runs, behind JSON and gRPC."""
    app = create_generate_app(service, max_body_bytes=1 << 20)
    async with listening(app, create_generate_rpc(service)) as listener:
        http_address, grpc_address = listener.addresses
        async with (
            httpx.AsyncClient(base_url=http_address, timeout=60) as http,
            open_channel(grpc_address.removeprefix("grpc://")) as channel,
        ):
            yield Doors(http, generate_pb2_grpc.GenerateServiceStub(channel))


def load_service(
    model_dir: Path, *, fault: Callable[[Plan], None] | None = None, **options: Any
) -> GenerateService:
    """A service that is not started. ``fault`` is called before each step, on the worker thread."""
    defaults = {"served_model_name": "tiny", "kv_cache_bytes": 1 << 22, "num_threads": 1}
    chosen = EngineOptions(model_dir=model_dir, **{**defaults, **options})
    return GenerateService.load(chosen) if fault is None else load_faulty(chosen, fault)


def load_faulty(options: EngineOptions, fault: Callable[[Plan], None]) -> GenerateService:
    """A service whose runner calls ``fault`` before each step."""
    worker = Worker("generate-engine")
    parts = worker.submit(lambda: set_up(options)).result()
    faulty = replace(parts, runner=FaultyRunner(parts.runner, fault))
    return GenerateService(faulty, options, worker)


class FaultyRunner(Runner):
    """A runner that calls ``fault`` with each step's plan first; what it raises is the step's."""

    def __init__(self, runner: Runner, fault: Callable[[Plan], None]) -> None:
        self._runner = runner
        self._fault = fault

    def run(self, plan: Plan) -> StepLogits:
        self._fault(plan)
        return self._runner.run(plan)


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
