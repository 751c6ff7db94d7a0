"""How requests to the service end early: refusals, NaN, aborts, overload, shutdown."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from support.generate_runs import answer, answers, ask, load_service, running_service, until
from support.tiny_models import POISON, VOCAB_SIZE
from triptych.errors import (
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.wire import GenerateRequest, SamplingParams, join_deltas
from triptych_generate.service import GenerateService

PROMPT = list(range(20, 30))


@pytest.fixture
def llama(tiny_dir: Callable[[str], Path]) -> Path:
    return tiny_dir("llama")


async def _wait_until_idle(service: GenerateService) -> None:
    """Until every KV block is free again, and each is accounted for."""
    await until(lambda: service.occupancy().is_idle)
    service._parts.scheduler.check()


async def test_masks_that_exclude_everything_end_the_request_with_400(llama: Path) -> None:
    async with running_service(llama) as service:
        with pytest.raises(InvalidRequestError, match="output position 0"):
            await answer(service, ask(PROMPT, allowed_token_ids=[4], bad_words_token_ids=[[4]]))
        await _wait_until_idle(service)
        assert (await answer(service, ask(PROMPT, max_tokens=2))).token_ids


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask([]), InvalidRequestError),
        (ask([-1]), InvalidRequestError),
        (ask([VOCAB_SIZE]), InvalidRequestError),
        (ask([2**31]), InvalidRequestError),
        (ask([1] * 600), ContextLengthError),
        (ask([1], logprobs=21), InvalidRequestError),
        (ask([1], stop=["x"]), InvalidRequestError),
        (
            GenerateRequest(token_ids=[1], sampling_params=SamplingParams(), model="other"),
            ModelNotFoundError,
        ),
    ],
)
async def test_bad_request_is_refused_before_the_first_delta(
    request_: GenerateRequest, error: type[TriptychError], llama: Path
) -> None:
    async with running_service(llama) as service:
        with pytest.raises(error):
            await anext(service.generate(request_))
        assert service.is_alive


@pytest.mark.parametrize("where", ["prompt", "scored prompt", "choices"])
async def test_nan_ends_its_request_and_the_engine_lives(where: str, poisoned: Path) -> None:
    params = {"scored prompt": {"prompt_logprobs": 0}, "choices": {"n": 3}}.get(where, {})
    bad = ask([1, POISON, 3], max_tokens=20, **params)
    good = ask(PROMPT[:2], max_tokens=20, logprobs=1)
    async with running_service(poisoned, kv_cache_bytes=6 << 15) as service:
        alone = await answer(service, good)
        results = await asyncio.gather(
            answer(service, bad), answer(service, good), return_exceptions=True
        )
        assert isinstance(results[0], InternalError)
        assert not isinstance(results[1], BaseException)
        assert results[1].choices == alone.choices
        # The bad request's blocks are used again, and nothing of it is left in them.
        again = await answers(service, [good] * 5)
        assert [one.choices for one in again] == [alone.choices] * 5
        await _wait_until_idle(service)


async def test_what_was_computed_before_nan_is_not_cached(poisoned: Path) -> None:
    bad = ask([1, POISON, *range(20, 110)], max_tokens=2)
    async with running_service(poisoned) as service:
        for _ in range(2):
            with pytest.raises(InternalError):
                await answer(service, bad)
        assert service.occupancy().num_hit == 0


async def test_closing_the_stream_frees_the_blocks(llama: Path) -> None:
    async with running_service(llama) as service:
        deltas = service.generate(ask(PROMPT, n=2))
        await anext(deltas)
        await deltas.aclose()
        await _wait_until_idle(service)
        assert not service._mailboxes
        assert not service._keys_by_id


async def test_cancelled_waiter_frees_the_blocks(llama: Path) -> None:
    async with running_service(llama) as service:
        task = asyncio.create_task(answer(service, ask(PROMPT)))
        await until(lambda: service.occupancy().num_running > 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await _wait_until_idle(service)


async def test_abort_ends_every_choice_of_the_waiter(llama: Path) -> None:
    async with running_service(llama) as service:
        request = msgspec.structs.replace(ask(PROMPT, n=2), request_id="r1")
        deltas = service.generate(request)
        seen = [await anext(deltas)]
        assert service.abort("r1")
        assert not service.abort("r1")
        seen += [delta async for delta in deltas]
        choices, _ = join_deltas(seen)
        assert [choice.finish_reason for choice in choices] == ["abort", "abort"]
        await _wait_until_idle(service)
        assert not service.abort("r1")


async def test_aborts_anywhere_leave_the_others_unharmed(llama: Path) -> None:
    draw = random.Random(8)
    good = ask(PROMPT, max_tokens=40)
    async with running_service(llama, max_step_tokens=16, max_num_sequences=8) as service:
        alone = (await answer(service, good)).token_ids

        async def leave_early(index: int) -> None:
            prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 100))]
            deltas = service.generate(ask(prompt, n=draw.randrange(1, 3), prompt_logprobs=0))
            for _ in range(index % 4):
                await anext(deltas)
            await deltas.aclose()

        leavers = [asyncio.create_task(leave_early(index)) for index in range(24)]
        assert (await answer(service, good)).token_ids == alone
        await asyncio.gather(*leavers)
        await _wait_until_idle(service)


async def test_slow_reader_gets_merged_deltas(llama: Path) -> None:
    async with running_service(llama) as service:
        fast = await answer(service, ask(PROMPT, max_tokens=30, logprobs=1))
        slow = service.generate(ask(PROMPT, max_tokens=30, logprobs=1))
        seen = [await anext(slow)]
        await _wait_until_idle(service)
        seen += [delta async for delta in slow]
    choices, _ = join_deltas(seen)
    assert choices == fast.choices
    assert len(seen) <= 3


async def test_too_many_waiting_requests_are_refused(llama: Path) -> None:
    async with running_service(llama, max_num_sequences=1, max_waiting=2) as service:
        running = service.generate(ask(PROMPT))
        await anext(running)
        waiting = [
            asyncio.create_task(answer(service, ask(PROMPT, max_tokens=2))) for _ in range(2)
        ]
        await until(lambda: service.occupancy().num_waiting == 2)
        with pytest.raises(OverloadedError, match="2 requests wait, limit is 2") as refused:
            await answer(service, ask(PROMPT))
        assert refused.value.retry_after_s == 1
        await running.aclose()
        assert all(one.token_ids for one in await asyncio.gather(*waiting))


async def test_too_many_waiting_tokens_are_refused_but_one_prompt_never_is(llama: Path) -> None:
    most = len(PROMPT) + 1
    async with running_service(llama, max_num_sequences=1, max_waiting_tokens=most) as service:
        running = service.generate(ask(PROMPT))
        await anext(running)
        long = asyncio.create_task(answer(service, ask(PROMPT * 2, max_tokens=2)))
        await until(lambda: service.occupancy().num_waiting == 1)
        assert service.occupancy().num_waiting_tokens == 2 * len(PROMPT)
        with pytest.raises(OverloadedError, match=f"tokens would wait, limit is {most}") as refused:
            await answer(service, ask([5], max_tokens=2))
        assert refused.value.retry_after_s == 1
        await running.aclose()
        assert (await long).token_ids


async def test_stop_ends_every_waiter(llama: Path) -> None:
    service = await asyncio.to_thread(load_service, llama)
    service.start()
    deltas = service.generate(ask(PROMPT))
    await anext(deltas)
    await service.stop()
    with pytest.raises(UnavailableError):
        async for _ in deltas:
            pass
    assert not service.is_alive


async def test_info_says_what_is_served(llama: Path) -> None:
    async with running_service(llama, dtype="bfloat16", max_model_len=128) as service:
        info = service.info()
    assert (info.model, info.max_model_len, info.vocab_size) == ("tiny", 128, VOCAB_SIZE)
    assert (info.dtype, info.device, info.invariant) == ("bfloat16", "cpu", True)
