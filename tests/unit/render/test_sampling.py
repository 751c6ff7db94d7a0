"""OpenAI's sampling fields on the generate wire."""

import json
from typing import Any

import pytest

from triptych.reply import ReplySpec
from triptych.wire import GenerateRequest, SamplingParams
from triptych_render.renderer import Renderer

_CONTEXT = 512


def _chat(renderer: Renderer, **fields: Any) -> tuple[GenerateRequest, ReplySpec]:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    rendered = renderer.render_chat(body)
    return rendered.requests[0], rendered.spec


def _completion(renderer: Renderer, **fields: Any) -> tuple[GenerateRequest, ReplySpec]:
    rendered = renderer.render_completion(json.dumps({"prompt": "hi", **fields}).encode())
    return rendered.requests[0], rendered.spec


def test_chat_defaults_are_openais_with_the_context_left(renderer: Renderer) -> None:
    request, _ = _chat(renderer)
    left = _CONTEXT - len(request.token_ids)
    assert request.sampling_params == SamplingParams(max_tokens=left)


def test_completion_defaults_are_openais_with_16_tokens(renderer: Renderer) -> None:
    request, _ = _completion(renderer)
    assert request.sampling_params == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ({"max_tokens": None}, None),
        ({"max_tokens": _CONTEXT}, None),
    ],
)
def test_chat_max_tokens(renderer: Renderer, fields: dict[str, Any], wanted: int | None) -> None:
    request, _ = _chat(renderer, **fields)
    left = _CONTEXT - len(request.token_ids)
    assert request.sampling_params.max_tokens == (left if wanted is None else wanted)


def test_max_tokens_is_cut_to_each_prompts_own_room(renderer: Renderer) -> None:
    body = json.dumps({"prompt": [[9] * 500, [9] * 510, [9]], "max_tokens": 100}).encode()
    requests = renderer.render_completion(body).requests
    assert [request.sampling_params.max_tokens for request in requests] == [12, 2, 100]


def test_echo_without_output_takes_a_prompt_as_long_as_the_context(renderer: Renderer) -> None:
    request, spec = _completion(
        renderer, prompt=[9] * _CONTEXT, echo=True, max_tokens=0, logprobs=1
    )
    assert request.sampling_params.max_tokens == 0
    assert request.sampling_params.prompt_logprobs == 1
    assert spec.echo


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_chat_logprobs(renderer: Renderer, fields: dict[str, Any], logprobs: int | None) -> None:
    request, spec = _chat(renderer, **fields)
    assert request.sampling_params.logprobs == logprobs
    assert request.sampling_params.prompt_logprobs is None
    assert spec.logprobs == (logprobs is not None)
    assert spec.top_logprobs == (logprobs or 0)


@pytest.mark.parametrize(
    ("fields", "logprobs", "prompt_logprobs"),
    [
        ({}, None, None),
        ({"logprobs": None, "echo": True}, None, None),
        ({"logprobs": False}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"logprobs": True}, 0, None),
        ({"logprobs": True, "top_logprobs": 4}, 4, None),
        ({"logprobs": 0, "echo": True}, 0, 0),
        ({"logprobs": 3, "echo": True}, 3, 3),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": 1}, 3, 1),
        ({"prompt_logprobs": 2}, None, 2),
    ],
)
def test_completion_logprobs(
    renderer: Renderer,
    fields: dict[str, Any],
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> None:
    request, spec = _completion(renderer, **fields)
    assert request.sampling_params.logprobs == logprobs
    assert request.sampling_params.prompt_logprobs == prompt_logprobs
    assert (spec.logprobs, spec.top_logprobs) == (logprobs is not None, logprobs)


def test_more_logprobs_are_allowed_where_fewer_ids_are(renderer: Renderer) -> None:
    request, _ = _chat(
        renderer, logprobs=True, top_logprobs=25, allowed_token_ids=list(range(5, 30))
    )
    assert request.sampling_params.logprobs == 25


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 0}])
def test_listed_ids_are_all_shown(renderer: Renderer, fields: dict[str, Any]) -> None:
    request, spec = _chat(renderer, logprob_token_ids=[9, 10, 11], **fields)
    assert request.sampling_params.logprob_token_ids == [9, 10, 11]
    assert (spec.logprobs, spec.top_logprobs) == (True, None)


def test_stop_strings_stay_out_of_the_sampling_parameters(renderer: Renderer) -> None:
    request, spec = _chat(renderer, stop=["", "a", "b"], min_tokens=3)
    assert request.sampling_params.stop is None
    assert (spec.stop, spec.min_tokens) == (["a", "b"], 3)


def test_bad_words_become_ids_once_each(renderer: Renderer) -> None:
    request, _ = _chat(renderer, bad_words=["a", " a", "bc"])
    # The toy tokenizer has an id per byte: 5 + the place in the byte-level alphabet.
    space, a, b, c = 225, 69, 70, 71
    assert request.sampling_params.bad_words_token_ids == [[a], [space, a], [b, c], [space, b, c]]
    assert request.sampling_params.bad_words is None


def test_unknown_fields_are_ignored(renderer: Renderer) -> None:
    request, _ = _chat(renderer, no_such_field={"a": 1})
    assert request.sampling_params.n == 1
