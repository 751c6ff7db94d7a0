"""What fails inside the engine ends the requests it concerns, through every door, and no other."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import msgspec
import pytest
import torch

from support.generate_runs import (
    Answer,
    answer,
    answers,
    ask,
    front_doors,
    running_service,
    until,
)
from support.tiny_models import POISON
from triptych.convert import request_to_proto
from triptych.errors import InternalError, UnavailableError
from triptych.wire import GenerateRequest
from triptych_generate.scheduler import Plan
from triptych_generate.service import GenerateService

PROMPT = list(range(20, 30))
#: The first token of requests that a test's fault looks for.
MARK = POISON


@pytest.fixture
def llama(tiny_dir: Callable[[str], Path]) -> Path:
    return tiny_dir("llama")


def is_marked(plan: Plan, *, only_prefill: bool = False) -> bool:
    return any(
        part.sequence.token_ids[0] == MARK
        for part in plan.slices
        if not (only_prefill and part.is_decode)
    )


def allocate_too_much(_: Plan) -> None:
    """torch's own failure to allocate, 4 PB."""
    torch.empty(1 << 50)


def raise_memory_error(_: Plan) -> None:
    raise MemoryError


def raise_gpu_out_of_memory(_: Plan) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


OUT_OF_MEMORY = [allocate_too_much, raise_memory_error, raise_gpu_out_of_memory]


def ids(given: Answer) -> list[list[int]]:
    return [choice.token_ids for choice in given.choices]


async def assert_idle(service: GenerateService) -> None:
    """Every KV block is free again, each is accounted for, and nobody waits."""
    await until(lambda: service.occupancy().is_idle)
    service._parts.scheduler.check()
    assert service.occupancy().num_running == 0


@pytest.mark.parametrize("run_out", OUT_OF_MEMORY)
async def test_prefill_without_memory_ends_alone_and_the_others_go_on_exactly(
    run_out: Callable[[Plan], None], llama: Path
) -> None:
    def fault(plan: Plan) -> None:
        if is_marked(plan, only_prefill=True):
            run_out(plan)

    good = ask(PROMPT, n=2, max_tokens=60, temperature=1.0, seed=2, logprobs=2)
    async with running_service(llama, fault=fault) as service:
        alone = await answer(service, good)
        running = asyncio.create_task(answer(service, good))
        await until(lambda: service.occupancy().num_running == 2)
        with pytest.raises(UnavailableError, match="out of memory") as ended:
            await answer(service, ask([MARK, 2, 3], n=2))
        assert ended.value.retry_after_s == 1
        assert (await running).choices == alone.choices
        await assert_idle(service)


async def test_decodes_without_memory_end_from_the_newest_until_the_rest_fits(
    llama: Path,
) -> None:
    def fault(plan: Plan) -> None:
        if len(plan.slices) > 2 and all(part.is_decode for part in plan.slices):
            allocate_too_much(plan)

    requests = [ask([7, i], max_tokens=30) for i in range(4)]
    async with running_service(llama, fault=fault) as service:
        alone = [await answer(service, request) for request in requests[:2]]
        given = await asyncio.gather(
            *(answer(service, request) for request in requests), return_exceptions=True
        )
        for index, one in enumerate(alone):
            survivor = given[index]
            assert isinstance(survivor, Answer)
            assert survivor.choices == one.choices
        assert [type(one) for one in given[2:]] == [UnavailableError] * 2
        await assert_idle(service)


async def test_survivor_that_just_got_a_block_is_computed_again_to_the_same_bits(
    llama: Path,
) -> None:
    failed: list[Plan] = []

    def fault(plan: Plan) -> None:
        is_growing = bool(plan.new_blocks) and all(part.is_decode for part in plan.slices)
        if is_growing and len(plan.slices) == 2 and not failed:
            failed.append(plan)
            allocate_too_much(plan)

    long = ask(range(20, 80), max_tokens=20, temperature=1.0, seed=5, logprobs=2)
    async with running_service(llama, fault=fault) as service:
        alone = await answer(service, long)
        given = await asyncio.gather(
            answer(service, long), answer(service, ask([7])), return_exceptions=True
        )
        assert failed
        assert isinstance(given[0], Answer)
        assert given[0].choices == alone.choices
        assert isinstance(given[1], UnavailableError)
        await assert_idle(service)


async def test_engine_that_never_has_memory_ends_each_request_and_recovers(llama: Path) -> None:
    has_memory = threading.Event()

    def fault(plan: Plan) -> None:
        if not has_memory.is_set():
            allocate_too_much(plan)

    async with running_service(llama, fault=fault) as service:
        given = await asyncio.gather(
            *(answer(service, ask(PROMPT, n=3)) for _ in range(3)), return_exceptions=True
        )
        assert [type(one) for one in given] == [UnavailableError] * 3
        await assert_idle(service)
        assert service.is_alive
        has_memory.set()
        assert (await answer(service, ask(PROMPT, max_tokens=4))).token_ids


@pytest.mark.parametrize("death", [RuntimeError("boom"), SystemExit(3)])
async def test_dead_loop_ends_every_waiter_and_shows(death: BaseException, llama: Path) -> None:
    def fault(plan: Plan) -> None:
        if is_marked(plan):
            raise death

    async with (
        running_service(llama, fault=fault, max_num_sequences=2) as service,
        front_doors(service) as doors,
    ):
        waiters = [asyncio.create_task(answer(service, ask(PROMPT))) for _ in range(4)]
        await until(lambda: service.occupancy().num_running == 2)
        dying = msgspec.structs.replace(ask([MARK]), priority=-1)
        waiters.append(asyncio.create_task(answer(service, dying)))
        waiters[0].cancel()
        ends = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(end) for end in ends[1:]] == [InternalError] * 4
        assert service.died.is_set()
        for path in ("/ready", "/health"):
            assert (await doors.http.get(path)).status_code == 503
        with pytest.raises(UnavailableError):
            await answer(service, ask(PROMPT))


@dataclass
class Gate:
    """Holds each step until the test lets it go; notes the plans that came."""

    plans: list[Plan] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.arrived.release()
        self.allowed.acquire()

    async def wait_for_step(self) -> None:
        await asyncio.to_thread(self.arrived.acquire)

    @contextlib.contextmanager
    def open_at_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.allowed.release(1_000_000)


async def test_abort_frees_the_blocks_before_the_next_step(llama: Path) -> None:
    gate = Gate()
    async with running_service(llama, fault=gate) as service:
        with gate.open_at_end():
            kept = asyncio.create_task(answer(service, ask(PROMPT, max_tokens=3)))
            await gate.wait_for_step()
            request = msgspec.structs.replace(ask(PROMPT, n=2), request_id="r1")
            aborted = asyncio.create_task(answer(service, request))
            await until(lambda: service.occupancy().num_waiting == 2)
            gate.allowed.release()
            await gate.wait_for_step()
            assert len(gate.plans[-1].slices) == 3
            assert service.abort("r1")
            ends = await aborted  # at once: no step has ended since
            assert [choice.finish_reason for choice in ends.choices] == ["abort", "abort"]
            gate.allowed.release()
            await gate.wait_for_step()
            assert len(gate.plans[-1].slices) == 1
            occupancy = service.occupancy()
            assert occupancy.num_blocks - occupancy.num_free_blocks == 1
        assert len((await kept).token_ids) == 3
        await assert_idle(service)


async def test_abort_hits_what_runs_and_no_later_request_of_the_same_id(llama: Path) -> None:
    # long enough that it does not end before the abort on a busy machine
    request = msgspec.structs.replace(ask(PROMPT, max_tokens=100), request_id="same")
    async with running_service(llama) as service:
        alone = await answer(service, request)
        first = service.generate(request)
        await anext(first)
        assert service.abort("same")
        # The abort has not reached the engine's thread for certain; the id runs again already.
        second = asyncio.create_task(answer(service, request))
        rest = [delta async for delta in first]
        assert rest[-1].choices[0].finish_reason == "abort"
        assert (await second).choices == alone.choices
        assert not service.abort("same")
        both = [asyncio.create_task(answer(service, request)) for _ in range(2)]
        await until(lambda: service.occupancy().num_running == 2)
        assert service.abort("same")
        assert [ids(await one) != ids(alone) for one in both] == [True, True]
        await assert_idle(service)


def nothing(_: Plan) -> None:
    """No fault."""


@pytest.mark.parametrize(
    ("name", "params", "fault", "status"),
    [
        ("prompt", {}, nothing, 500),
        ("scored prompt", {"prompt_logprobs": 1, "max_tokens": 0}, nothing, 500),
        ("memory", {}, allocate_too_much, 503),
    ],
)
async def test_fault_of_a_request_has_its_status_at_every_door(
    name: str,
    params: dict[str, Any],
    fault: Callable[[Plan], None],
    status: int,
    poisoned: Path,
) -> None:
    request = ask([MARK, 2, 3], **params)
    good = ask(PROMPT, max_tokens=3)

    def fault_of_marked(plan: Plan) -> None:
        if is_marked(plan):
            fault(plan)

    async with (
        running_service(poisoned, fault=fault_of_marked) as service,
        front_doors(service) as doors,
    ):
        for is_stream in (False, True):
            given = await post(doors.http, request, is_stream=is_stream)
            assert given.status_code == status
            assert given.json()["error"]["type"] == "server_error"
            assert given.headers.get("retry-after") == ("1" if status == 503 else None)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for _ in doors.grpc.Generate(request_to_proto(request)):
                pass
        code = grpc.StatusCode.UNAVAILABLE if status == 503 else grpc.StatusCode.INTERNAL
        assert ended.value.code() is code
        assert (await post(doors.http, good, is_stream=False)).status_code == 200
        assert (await doors.http.get("/ready")).status_code == 200


async def test_fault_behind_the_first_token_is_one_error_event_and_a_status(llama: Path) -> None:
    def fault(plan: Plan) -> None:
        if is_marked(plan) and plan.slices[0].sequence.num_output == 3:
            allocate_too_much(plan)

    request = ask([MARK, 2], max_tokens=9)
    async with running_service(llama, fault=fault) as service, front_doors(service) as doors:
        given = await post(doors.http, request, is_stream=True)
        assert given.status_code == 200
        *data, end = given.text.strip().split("\n\n")
        deltas = [json.loads(frame.removeprefix("data: ")) for frame in data]
        assert sum(len(delta["choices"][0]["token_ids"]) for delta in deltas) == 3
        assert end.startswith("event: error\n")
        call = doors.grpc.Generate(request_to_proto(request))
        with pytest.raises(grpc.aio.AioRpcError, match="out of memory"):
            assert not [message async for message in call]
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def post(
    client: httpx.AsyncClient, request: GenerateRequest, *, is_stream: bool
) -> httpx.Response:
    body = msgspec.json.encode(msgspec.structs.replace(request, stream=is_stream))
    return await client.post("/inference/v1/generate", content=body)


async def test_every_end_is_counted_by_its_reason(llama: Path) -> None:
    def fault(plan: Plan) -> None:
        if is_marked(plan):
            allocate_too_much(plan)

    async with (
        running_service(llama, fault=fault, prefix_cache=False) as service,
        front_doors(service) as doors,
    ):
        (first, *_) = await answers(service, [ask(PROMPT, max_tokens=5)] * 2)
        stop = first.token_ids[:1]
        await answer(service, ask(PROMPT, max_tokens=5, stop_token_ids=stop))
        with pytest.raises(UnavailableError):
            await answer(service, ask([MARK]))
        deltas = service.generate(ask(PROMPT))
        await anext(deltas)
        await deltas.aclose()
        running = service.generate(msgspec.structs.replace(ask(PROMPT), request_id="r"))
        await anext(running)
        service.abort("r")
        assert [delta async for delta in running]
        await assert_idle(service)
        page = (await doors.http.get("/metrics")).text
    figures = dict(
        line.removeprefix("triptych_generate_").rsplit(" ", 1)
        for line in page.splitlines()
        if not line.startswith("#")
    )
    ends = {
        reason: figures.get(f'requests_ended_total{{reason="{reason}"}}')
        for reason in ("length", "stop", "unavailable", "client_gone", "abort")
    }
    assert ends == {
        "length": "2.0",
        "stop": "1.0",
        "unavailable": "1.0",
        "client_gone": "1.0",
        "abort": "1.0",
    }
    assert figures["first_token_seconds_count"] == "5.0"
    assert float(figures["step_seconds_count"]) >= 5
    assert float(figures['tokens_total{kind="prefill"}']) == 5 * len(PROMPT)
    assert float(figures['tokens_total{kind="output"}']) >= 5 + 5 + 1 + 1 + 1
    assert figures["invariant"] == "1.0"
    assert figures["running"] == "0.0"
