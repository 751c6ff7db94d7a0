"""Whatever the door takes, the step loop survives, and others get the same bits beside it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from support.generate_runs import Answer, answer, ask, running_service
from support.tiny_models import VOCAB_SIZE, make_tiny_model
from triptych.errors import InvalidRequestError
from triptych.wire import GenerateRequest
from triptych_generate.service import GenerateService

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_LEN = 64
BESIDE = ask([3, 1, 4], max_tokens=6, temperature=1.0, seed=1, logprobs=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GenerateService]:
    model_dir = make_tiny_model("llama", tmp_path_factory.mktemp("any"), eos_token_id=[7, 8])
    async with running_service(model_dir, max_model_len=MAX_LEN, max_logprobs=-1) as started:
        yield started


token_ids = st.integers(0, VOCAB_SIZE - 1)
ids = st.lists(token_ids, max_size=VOCAB_SIZE)
counts = st.none() | st.integers(-1, 3) | st.integers(0, VOCAB_SIZE + 5)
params = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3),
        "temperature": st.floats(0, 1e6),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(-1, 2**62),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.001, 1000),
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "max_tokens": st.none() | st.integers(0, 5) | st.integers(0, 2**62),
        "min_tokens": st.integers(0, 2**62),
        "ignore_eos": st.booleans(),
        "stop_token_ids": ids,
        "logit_bias": st.dictionaries(token_ids, st.floats(-100, 100), max_size=8),
        "allowed_token_ids": st.none() | ids,
        "bad_words_token_ids": st.none() | st.lists(st.lists(token_ids, max_size=3), max_size=8),
        "logprobs": counts,
        "prompt_logprobs": counts,
        "logprob_token_ids": st.none() | ids,
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
    },
)
requests = st.builds(
    GenerateRequest,
    token_ids=st.lists(token_ids, min_size=1, max_size=MAX_LEN),
    sampling_params=params.map(lambda given: ask([], **given).sampling_params),
    priority=st.integers(-(2**31), 2**31 - 1),
    resume_from=st.integers(0, 3),
    choice_index=st.integers(0, 63),
)


@given(request=requests)
@settings(max_examples=60)
async def test_request_that_is_taken_ends_and_harms_nobody(
    service: GenerateService, request: GenerateRequest
) -> None:
    alone = await answer(service, BESIDE)
    given, beside = await asyncio.gather(
        answer(service, request), answer(service, BESIDE), return_exceptions=True
    )
    if not isinstance(given, InvalidRequestError):
        assert isinstance(given, Answer), repr(given)
        check_answer(request, given)
    assert isinstance(beside, Answer)
    assert beside.choices == alone.choices
    assert service.is_alive


def check_answer(request: GenerateRequest, given: Answer) -> None:
    """Every choice has ended, within the limits, and all numbers are finite."""
    n = request.sampling_params.n
    first = request.choice_index
    assert [choice.index for choice in given.choices] == list(range(first, first + n))
    for choice in given.choices:
        assert choice.finish_reason is not None
        assert len(request.token_ids) + len(choice.token_ids) <= MAX_LEN
        assert all(0 <= token_id < VOCAB_SIZE for token_id in choice.token_ids)
    scored: list[Any] = [given.prompt_logprobs, *(choice.logprobs for choice in given.choices)]
    text = msgspec.json.encode([columns and columns.logprobs for columns in scored if columns])
    assert b"null" not in text, "a logprob is NaN or infinite"
