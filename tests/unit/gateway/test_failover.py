"""Answers over several workers that fail: joined, they are those of a worker that does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_fleet import (
    FAST,
    FakeWorker,
    Fault,
    deltas_of,
    fake_workers,
    info,
    unreachable,
    until,
    until_state,
)
from support.takers import drawn_taker
from triptych.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.wire import GenerateDelta, GenerateRequest, SamplingParams, join_deltas
from triptych_gateway import deadline
from triptych_gateway.attempts import MAX_ATTEMPTS, Attempts, Patience
from triptych_gateway.failover import FailoverGenerate
from triptych_gateway.partial import Partial
from triptych_gateway.replicas import ReplicaSet

PATIENCE = Patience(0, 5)


def ask(**params: Any) -> GenerateRequest:
    known = {"seed": 3, "max_tokens": 6, "logprobs": 1, **params}
    return GenerateRequest(
        token_ids=[5, 6, 7], sampling_params=SamplingParams(**known), request_id="r"
    )


@asynccontextmanager
async def failover(
    *workers: FakeWorker, patience: Patience = PATIENCE
) -> AsyncIterator[tuple[FailoverGenerate, ReplicaSet[Any]]]:
    async with fake_workers(*workers) as replicas:
        yield FailoverGenerate(replicas, patience), replicas
        assert [replica.outstanding for replica in replicas.replicas] == [0] * len(workers)
        assert [worker.num_open for worker in workers] == [0] * len(workers)


async def received(
    link: FailoverGenerate, request: GenerateRequest, *, share_taken: float = 0
) -> list[GenerateDelta]:
    """The deltas, of which a taker takes a share."""
    heard: list[GenerateDelta] = []
    taker = drawn_taker(7, share_taken, heard.append)
    async for delta in link.generate(request, taker):
        heard.append(delta)  # noqa: PERF401  # in order with those that were taken
    return heard


def seen(deltas: list[GenerateDelta]) -> Any:
    """All that a client sees, once each: also how often the prompt's figures came."""
    return (
        join_deltas(deltas),
        [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs],
        [delta.cached_tokens for delta in deltas if delta.cached_tokens],
    )


faults = st.lists(
    st.builds(
        Fault,
        st.integers(0, 7),
        st.sampled_from([None, unreachable(), UnavailableError("it drains"), OverloadedError("x")]),
    ),
    max_size=MAX_ATTEMPTS // 2,
)


@given(
    faults=st.tuples(faults, faults, st.just([])),
    n=st.integers(1, 3),
    scored=st.booleans(),
    share_taken=st.sampled_from([0, 0.5, 1]),
)
@settings(max_examples=150)
async def test_answer_cut_anywhere_any_number_of_times_is_the_undisturbed_one(
    faults: tuple[list[Fault], ...], n: int, scored: bool, share_taken: float
) -> None:
    workers = [FakeWorker(str(index), faults=list(each)) for index, each in enumerate(faults)]
    request = ask(n=n, prompt_logprobs=0 if scored else None)
    async with failover(*workers) as (link, _):
        deltas = await received(link, request, share_taken=share_taken)
    assert seen(deltas) == seen(deltas_of(request))
    for rest in [each for worker in workers for each in worker.requests]:
        asked = request.sampling_params
        params = msgspec.structs.replace(
            rest.sampling_params, n=n, prompt_logprobs=asked.prompt_logprobs
        )
        assert params == asked
        assert rest.token_ids[: rest.prompt_len] == request.token_ids


@pytest.mark.parametrize("have_come", [False, True])
def test_prompt_logprobs_are_asked_for_until_they_come(have_come: bool) -> None:
    """They may come a step before choice 0's output: with the others', whose prompt was cached."""
    request = ask(n=2, prompt_logprobs=0)
    (first, *_) = deltas_of(request)
    partial = Partial(request)
    scores = first.prompt_logprobs if have_come else None
    partial.take(msgspec.structs.replace(first, choices=first.choices[1:], prompt_logprobs=scores))
    cut, other = partial.rests()
    assert (cut.choice_index, cut.resume_from, other.resume_from) == (0, 0, 1)
    assert cut.sampling_params.prompt_logprobs == (None if have_come else 0)


async def begun_at(
    first: FakeWorker, spare: FakeWorker, link: FailoverGenerate, request: GenerateRequest
) -> "asyncio.Task[list[GenerateDelta]]":
    """An answer that began at ``first``, because ``spare`` was down; it is up now."""
    answer = asyncio.create_task(received(link, request))
    await until(lambda: bool(first.requests))
    spare.probe_error = None
    return answer


async def test_choices_that_were_cut_go_on_by_requests_of_their_own() -> None:
    first = FakeWorker("a", faults=[Fault(2, unreachable())])
    spare = FakeWorker("b", probe_error=unreachable())
    async with failover(first, spare) as (link, replicas):
        answer = await begun_at(first, spare, link, ask(n=2))
        first.probe_error = unreachable()
        assert seen(await answer) == seen(deltas_of(ask(n=2)))
        assert replicas.num_resumes == 2
    cuts = sorted((each.choice_index, each.resume_from) for each in spare.requests)
    assert cuts == [(0, 2), (1, 2)]


async def test_worker_that_hangs_is_left_and_let_in_again_when_it_answers() -> None:
    hanging = FakeWorker("a", faults=[Fault(2, is_silence=True)])
    spare = FakeWorker("b", probe_error=unreachable())
    async with failover(hanging, spare) as (link, replicas):
        await until_state(replicas, up=1, down=1)
        answer = asyncio.create_task(received(link, ask()))
        await until_state(replicas, down=2)
        spare.probe_error = None
        assert seen(await answer) == seen(deltas_of(ask()))
        assert [each.resume_from for each in spare.requests] == [2]
        hanging.is_silent = False
        await until_state(replicas, up=2)


@pytest.mark.parametrize("share_taken", [0, 1])
async def test_worker_that_sends_does_not_hang_though_its_probes_do(share_taken: float) -> None:
    worker = FakeWorker("a", pause_s=FAST.hang_timeout_s / 10)
    request = ask(max_tokens=40)
    async with failover(worker) as (link, replicas):
        await until_state(replicas, up=1)
        worker.is_silent = True
        deltas = await received(link, request, share_taken=share_taken)
        assert seen(deltas) == seen(deltas_of(request))
        assert replicas.num_resumes == 0


async def test_worker_whose_steps_stand_still_hangs_though_it_answers() -> None:
    busy = info()
    assert busy.load is not None
    busy = msgspec.structs.replace(busy, load=msgspec.structs.replace(busy.load, num_running=1))
    stuck = FakeWorker("a", faults=[Fault(1, is_silence=True)])
    spare = FakeWorker("b", probe_error=unreachable())
    async with failover(stuck, spare) as (link, replicas):
        await until_state(replicas, up=1, down=1)
        answer = asyncio.create_task(received(link, ask()))
        await until(lambda: stuck.is_silent)
        stuck.is_silent, stuck.said = False, busy
        await until_state(replicas, down=2)
        spare.probe_error = None
        assert seen(await answer) == seen(deltas_of(ask()))


async def test_worker_that_is_only_slow_is_left_alone() -> None:
    slow = FakeWorker("a", faults=[Fault(1, is_silence=True)])
    async with failover(slow, FakeWorker("b", probe_error=unreachable())) as (link, _):
        answer = asyncio.create_task(received(link, ask()))
        await until(lambda: slow.is_silent)
        slow.is_silent = False  # it answers probes, and has nothing to say yet
        await asyncio.sleep(3 * FAST.hang_timeout_s)
        assert not answer.done()
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer


async def test_single_worker_is_waited_for_when_the_answer_has_begun() -> None:
    worker = FakeWorker("a", faults=[Fault(3, unreachable())])
    async with failover(worker) as (link, replicas):
        answer = asyncio.create_task(received(link, ask()))
        await until(lambda: bool(worker.requests))
        worker.probe_error = unreachable()
        await until_state(replicas, down=1)
        worker.probe_error = None
        assert seen(await answer) == seen(deltas_of(ask()))


@pytest.mark.parametrize("num_deltas", [0, 2])
async def test_nobody_who_can_take_over_is_an_error_within_the_limit(num_deltas: int) -> None:
    faults = [Fault(num_deltas, unreachable()), *[Fault(0, unreachable()) for _ in range(9)]]
    worker = FakeWorker("a", faults=faults)
    async with failover(worker, patience=Patience(0.3, 20)) as (link, _):
        with pytest.raises(UnavailableError) as raised:
            await received(link, ask())
    assert raised.value.retry_after_s == 1
    assert len(worker.requests) == (1 if num_deltas == 0 else MAX_ATTEMPTS)


async def test_request_waits_for_the_only_worker_to_come_up() -> None:
    worker = FakeWorker("a", probe_error=unreachable())
    async with failover(worker, patience=Patience(20, 0)) as (link, replicas):
        answer = asyncio.create_task(received(link, ask()))
        await until_state(replicas, down=1)
        worker.probe_error = None
        assert seen(await answer) == seen(deltas_of(ask()))


async def test_request_that_a_dying_worker_refused_waits_for_its_successor() -> None:
    worker = FakeWorker("a", faults=[Fault(0, unreachable())])
    async with failover(worker, patience=Patience(20, 0)) as (link, replicas):
        worker.probe_error = unreachable()
        answer = asyncio.create_task(received(link, ask()))
        await until_state(replicas, down=1)
        worker.probe_error = None
        assert seen(await answer) == seen(deltas_of(ask()))
        assert len(worker.requests) == 2


@pytest.mark.parametrize("error", [OverloadedError("full"), UnavailableError("no memory")])
async def test_request_that_a_worker_refused_which_is_well_does_not_wait(
    error: TriptychError,
) -> None:
    worker = FakeWorker("a", faults=[Fault(0, error)])
    async with failover(worker, patience=Patience(1000, 0)) as (link, _):
        with pytest.raises(type(error)):
            await received(link, ask())
    assert len(worker.requests) == 1


async def test_no_worker_is_a_503_at_once_without_patience() -> None:
    async with failover(FakeWorker("a", probe_error=unreachable())) as (link, _):
        with pytest.raises(UnavailableError, match="no replica of generate is up"):
            await received(link, ask())
        with pytest.raises(UnavailableError):
            await link.info()


async def test_refusals_are_tried_elsewhere_a_bounded_number_of_times() -> None:
    workers = [
        FakeWorker(str(index), faults=[Fault(0, OverloadedError("full", retry_after_s=2))])
        for index in range(MAX_ATTEMPTS + 3)
    ]
    async with failover(*workers) as (link, _):
        with pytest.raises(OverloadedError) as raised:
            await received(link, ask())
    assert raised.value.retry_after_s == 2
    assert sum(len(worker.requests) for worker in workers) == MAX_ATTEMPTS


async def test_answer_that_has_begun_waits_for_room() -> None:
    full = OverloadedError("full", retry_after_s=1)
    first = FakeWorker("a", faults=[Fault(2, unreachable()), Fault(0, full), Fault(0, full)])
    async with failover(first) as (link, _):
        assert seen(await received(link, ask())) == seen(deltas_of(ask()))


async def test_limit_of_waiting_begins_again_with_every_token() -> None:
    async with fake_workers(FakeWorker("a")) as replicas:
        attempts = Attempts(replicas, Patience(0, 0.1), has_begun=True)
        for _ in range(3):
            attempts.failed(await attempts.next(), OverloadedError("full"))
            await attempts.next()
            attempts.progressed()
            await asyncio.sleep(0.15)


@pytest.mark.parametrize("error", [InvalidRequestError("bad"), DeadlineError("late")])
async def test_fault_of_the_request_is_tried_once(error: TriptychError) -> None:
    workers = [FakeWorker(str(index), faults=[Fault(0, error)]) for index in range(3)]
    async with failover(*workers) as (link, _):
        with pytest.raises(type(error)):
            await received(link, ask())
    assert sum(len(worker.requests) for worker in workers) == 1


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_broken_model_is_tried_once_at_each_worker(num_workers: int) -> None:
    workers = [
        FakeWorker(str(index), faults=[Fault(1, InternalError("NaN")) for _ in range(5)])
        for index in range(num_workers)
    ]
    async with failover(*workers) as (link, _):
        with pytest.raises(InternalError, match="NaN"):
            await received(link, ask())
    assert [len(worker.requests) for worker in workers] == [1] * num_workers


@pytest.mark.parametrize("n", [1, 2])
async def test_answer_that_cannot_be_resumed_ends_when_it_is_cut(n: int) -> None:
    said = info(can_resume=False)
    workers = [FakeWorker(name, said=said, faults=[Fault(2, unreachable())]) for name in "ab"]
    async with failover(*workers, patience=Patience(0, 60)) as (link, _):
        async with asyncio.timeout(5):
            with pytest.raises(UnavailableError):
                await received(link, ask(n=n))
    assert sum(len(worker.requests) for worker in workers) == 1


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"can_resume": False}, {"model": "x"}])
async def test_worker_of_another_kind_takes_nothing_over(change: dict[str, Any]) -> None:
    first = FakeWorker("a", faults=[Fault(2, unreachable()) for _ in range(9)])
    other = FakeWorker("b", said=info(**change), probe_error=unreachable())
    async with failover(first, other, patience=Patience(0, 0.2)) as (link, replicas):
        answer = await begun_at(first, other, link, ask())
        first.probe_error = unreachable()
        await until_state(replicas, up=1, down=1)
        with pytest.raises(UnavailableError):
            await answer
    assert other.requests == []


async def test_limit_of_a_whole_answer_holds_over_all_workers() -> None:
    workers = [FakeWorker(str(index), faults=[Fault(1, is_silence=True)]) for index in range(2)]
    async with failover(*workers, patience=Patience(60, 60)) as (link, _):
        deadline.begin(0.4)
        async with asyncio.timeout(5):
            with pytest.raises(DeadlineError):
                await received(link, ask())


async def test_client_that_leaves_closes_the_requests_of_all_choices() -> None:
    first = FakeWorker("a", faults=[Fault(2, unreachable())])
    faults = [Fault(2, is_silence=True) for _ in range(3)]
    spare = FakeWorker("b", faults=faults, probe_error=unreachable())
    async with failover(first, spare) as (link, _):
        answer = link.generate(ask(n=3))
        await anext(answer)
        spare.probe_error, first.probe_error = None, unreachable()
        for _ in range(3):
            await anext(answer)
        assert spare.num_open == 3
        await answer.aclose()
