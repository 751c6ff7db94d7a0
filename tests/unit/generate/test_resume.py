"""A request that is cut anywhere and resumed gives, joined, the bits of an undisturbed one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.generate_runs import Answer, answer, answers, ask, running_service
from support.tiny_models import VOCAB_SIZE, make_tiny_model
from triptych.errors import InvalidRequestError
from triptych.wire import ChoiceDelta, GenerateRequest
from triptych_generate.service import GenerateService

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(20, 30))
#: One id in eight ends a sequence, so that many answers end by EOS.
EOS = list(range(0, VOCAB_SIZE, 8))
MAX_LEN = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GenerateService]:
    model_dir = make_tiny_model("llama", tmp_path_factory.mktemp("eos"), eos_token_id=EOS)
    async with running_service(model_dir, max_model_len=MAX_LEN) as started:
        yield started


token_ids = st.integers(0, VOCAB_SIZE - 1)
some_ids = st.lists(token_ids, max_size=20)
params = st.fixed_dictionaries(
    {
        "n": st.integers(1, 2),
        "max_tokens": st.integers(0, 8),
        "min_tokens": st.integers(0, 4),
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "ignore_eos": st.booleans(),
        "stop_token_ids": some_ids,
        "logprobs": st.none() | st.integers(0, 3),
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
        "prompt_logprobs": st.none() | st.integers(0, 2),
    },
    optional={
        "top_p": st.floats(0.1, 1),
        "top_k": st.integers(1, VOCAB_SIZE),
        "min_p": st.floats(0, 0.5),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "logit_bias": st.dictionaries(token_ids, st.floats(-5, 5, width=32), max_size=5),
        "allowed_token_ids": st.lists(token_ids, min_size=5, max_size=30),
        "bad_words_token_ids": st.lists(st.lists(token_ids, min_size=1, max_size=2), max_size=10),
        "logprob_token_ids": st.lists(token_ids, max_size=4),
    },
)


def resumed(request: GenerateRequest, choice: ChoiceDelta, num_done: int) -> GenerateRequest:
    """What another worker is asked when ``choice`` was cut after ``num_done`` tokens."""
    return msgspec.structs.replace(
        request,
        token_ids=request.token_ids + choice.token_ids[:num_done],
        resume_from=num_done,
        choice_index=choice.index,
        sampling_params=msgspec.structs.replace(request.sampling_params, n=1),
    )


def assert_goes_on(whole: Answer, choice: ChoiceDelta, num_done: int, rest: Answer) -> None:
    (given,) = rest.choices
    assert given.index == choice.index
    assert given.token_ids == choice.token_ids[num_done:]
    assert (given.finish_reason, given.stop_reason) == (choice.finish_reason, choice.stop_reason)
    assert scores(given) == scores(choice)[num_done:]
    is_start = num_done == choice.index == 0
    assert rest.prompt_logprobs == (whole.prompt_logprobs if is_start else None)


def scores(choice: ChoiceDelta) -> list[Any]:
    return list(choice.logprobs.positions()) if choice.logprobs is not None else []


async def check_every_cut(service: GenerateService, request: GenerateRequest) -> None:
    whole = await answer(service, request)
    cuts = [
        (choice, num_done)
        for choice in whole.choices
        for num_done in range(len(choice.token_ids) + 1)
    ]
    rests = await answers(service, [resumed(request, *cut) for cut in cuts])
    for (choice, num_done), rest in zip(cuts, rests, strict=True):
        assert_goes_on(whole, choice, num_done, rest)


@given(params=params)
@settings(max_examples=40)
async def test_request_cut_at_every_position_goes_on_exactly(
    service: GenerateService, params: dict[str, Any]
) -> None:
    assume(params["min_tokens"] <= params["max_tokens"])
    try:
        await check_every_cut(service, ask(PROMPT, **params))
    except InvalidRequestError as refused:
        assume("no token is allowed" not in refused.message)
        raise


async def test_output_that_fills_the_context_is_cut_anywhere(service: GenerateService) -> None:
    await check_every_cut(service, ask(range(1, MAX_LEN - 3), ignore_eos=True, logprobs=1))


@pytest.mark.parametrize("is_eos", [True, False])
async def test_resume_behind_a_stop_ends_at_once_with_its_reason(
    is_eos: bool, service: GenerateService
) -> None:
    last = EOS[3] if is_eos else 5
    request = msgspec.structs.replace(
        ask([*PROMPT, 9, last], max_tokens=8, stop_token_ids=[5], logprobs=1), resume_from=2
    )
    free = service.occupancy().num_free_blocks
    (delta,) = (await answer(service, request)).deltas
    (choice,) = delta.choices
    assert (choice.token_ids, choice.finish_reason) == ([], "stop")
    assert choice.stop_reason == (None if is_eos else 5)
    assert service.occupancy().num_free_blocks == free


async def test_cut_before_min_tokens_does_not_end_at_a_stop_id(service: GenerateService) -> None:
    request = msgspec.structs.replace(
        ask([*PROMPT, 5], max_tokens=4, min_tokens=3, stop_token_ids=[5]), resume_from=1
    )
    given = await answer(service, request)
    assert len(given.token_ids) >= 2


@pytest.mark.model
async def test_smollm2_cut_at_every_position_goes_on_exactly(smollm2_dir: Path) -> None:
    request = ask(
        [504, 3575, 282, 4649, 314],
        n=2,
        max_tokens=7,
        temperature=1.0,
        top_p=0.95,
        seed=3,
        frequency_penalty=0.5,
        logprobs=5,
        prompt_logprobs=1,
    )
    options = {"max_model_len": 128, "kv_cache_bytes": 1 << 27}
    async with running_service(smollm2_dir, **options) as service:
        await check_every_cut(service, request)
