"""Bounds: every parameter is refused just outside its range and taken just inside."""

from typing import Any

import msgspec
import pytest

from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.sampling import Limits, check_request
from triptych.wire import GenerateRequest, SamplingParams, StructuredOutputs

LIMITS = Limits(vocab_size=100, max_model_len=16)


def request(ids: list[int] | None = None, resume_from: int = 0, **params: Any) -> GenerateRequest:
    return GenerateRequest(
        token_ids=[1, 2, 3] if ids is None else ids,
        sampling_params=SamplingParams(**params),
        resume_from=resume_from,
    )


@pytest.mark.parametrize(
    "params",
    [
        {"n": 0},
        {"n": 65},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": float("nan")},
        {"seed": 2**63},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"min_tokens": 3, "max_tokens": 2},
        {"logprobs": 21},
        {"logprobs": -1},
        {"logprobs": -2},
        {"prompt_logprobs": 21},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [100]},
        {"logprob_token_ids": [-1]},
        {"logprob_token_ids": [1] * 1025},
        {"stop_token_ids": [100]},
        {"logit_bias": {100: 1.0}},
        {"logit_bias": {1: 100.5}},
        {"logit_bias": {1: float("nan")}},
        {"bad_words_token_ids": [[]]},
        {"bad_words_token_ids": [[100]]},
        {"stop": ["x"]},
        {"bad_words": ["x"]},
        {"structured_outputs": StructuredOutputs()},
        {"structured_outputs": StructuredOutputs(json={"not": {}})},
    ],
)
def test_parameter_out_of_range_is_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(request(**params), LIMITS)
    assert any(name in caught.value.message for name in params)
    assert caught.value.param is not None


@pytest.mark.parametrize(
    "params",
    [
        {"n": 64},
        {"temperature": 0.0},
        {"top_p": 1.0, "top_k": -1, "min_p": 1.0},
        {"seed": -(2**63)},
        {"logit_bias": {1: 100.0, 2: -100.0}, "repetition_penalty": 1000.0},
        {"max_tokens": 0},
        {"logprobs": 20, "prompt_logprobs": 0},
        {"logprobs": 26, "allowed_token_ids": list(range(26))},
        {"stop": [], "bad_words": []},
        {"logprob_token_ids": [99] * 1024},
    ],
)
def test_parameter_at_its_bound_is_taken(params: dict[str, Any]) -> None:
    check_request(request(**params), LIMITS)


def test_whole_vocabulary_is_taken_where_the_server_permits_it() -> None:
    limits = msgspec.structs.replace(LIMITS, max_logprobs=-1)
    check_request(request(logprobs=-1, prompt_logprobs=-1), limits)


@pytest.mark.parametrize("ids", [[], [-1], [100], [2**31], [1, 2**63]])
def test_bad_prompt_is_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="token_ids"):
        check_request(request(ids), LIMITS)


@pytest.mark.parametrize(("length", "max_tokens"), [(16, None), (16, 1), (17, 0)])
def test_prompt_without_room_names_limit_and_value(length: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextLengthError, match=f"prompt has {length} tokens, limit is"):
        check_request(request([1] * length, max_tokens=max_tokens), LIMITS)


def test_prompt_that_fills_the_context_may_be_scored() -> None:
    check_request(request([1] * 16, max_tokens=0), LIMITS)


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"resume_from": 3}, {}),
        ({"resume_from": -1}, {}),
        ({"resume_from": 1}, {"n": 2}),
        ({"resume_from": 2}, {"max_tokens": 1}),
        ({"choice_index": -1}, {}),
        ({"choice_index": 64}, {}),
        ({"choice_index": 63}, {"n": 2}),
    ],
)
def test_resume_needs_a_prompt_one_choice_and_output_within_the_limit(
    changes: dict[str, int], params: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(msgspec.structs.replace(request(**params), **changes), LIMITS)
    assert caught.value.param in changes


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"resume_from": 2}, {"max_tokens": 2}),
        ({"choice_index": 63}, {}),
        ({"choice_index": 62}, {"n": 2}),
    ],
)
def test_resume_at_its_bounds_is_taken(changes: dict[str, int], params: dict[str, Any]) -> None:
    check_request(msgspec.structs.replace(request(**params), **changes), LIMITS)


def test_resumed_output_may_fill_the_context_and_no_more() -> None:
    check_request(request([1] * 16, resume_from=1), LIMITS)
    with pytest.raises(ContextLengthError, match="have 17 tokens, limit is 16"):
        check_request(request([1] * 17, resume_from=2), LIMITS)
    with pytest.raises(InvalidRequestError, match=r"token_ids\[3\] is 100"):
        check_request(request([1, 2, 3, 100], resume_from=1), LIMITS)
