"""Every refusal: the field that ``param`` names and what the one-line message says."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from triptych.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from triptych_render.renderer import Renderer

_USER = {"role": "user", "content": "hi"}


def _chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [_USER], **fields}).encode()


def _completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hi", **fields}).encode()


def _content(*parts: Any) -> bytes:
    return _chat(messages=[_USER, {"role": "user", "content": list(parts)}])


def _refusal(render: Callable[[bytes], object], body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        render(body)
    assert "\n" not in error.value.message
    return error.value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"a":', "not valid JSON"),
        (b'{"messages": [NaN]}', "not valid JSON"),
        (b'{"messages": "\xff"}', "not valid JSON"),
        (b'{"messages": "\\ud800"}', "not valid JSON"),
        (b"[1]", "must be a JSON object, got a list"),
        (b"null", "must be a JSON object, got null"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_object_is_refused(renderer: Renderer, body: bytes, says: str) -> None:
    for render in (
        renderer.render_chat,
        renderer.render_completion,
        renderer.tokenize,
        renderer.detokenize,
    ):
        assert says in _refusal(render, body).message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{}", "messages", "messages: Field required"),
        (_chat(messages=None), "messages", "messages: Field required"),
        (_chat(messages="hi"), "messages", "valid list, got a string"),
        (_chat(messages=[]), "messages", "at least 1 item"),
        (_chat(messages=["hi"]), "messages[0]", "messages[0]: "),
        (_chat(messages=[_USER, {"content": "a"}]), "messages[1].role", "Field required"),
        (_chat(messages=[{"role": "bot", "content": "a"}]), "messages[0].role", "'user'"),
        (_chat(messages=[{"role": "user", "content": 5}]), "messages[0].content", "got 5"),
        (_chat(messages=[{"role": "user"}]), "messages[0].content", "only an assistant message"),
        (_content("a"), "messages[1].content[0]", "messages[1].content[0]: "),
        (_content({"text": "a"}), "messages[1].content[0].type", "Field required"),
        (_content({"type": "text"}), "messages[1].content[0].text", "Field required"),
        (
            _content({"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}),
            "messages[1].content[1]",
            "of type 'image_url'; only text parts",
        ),
        (_content({"type": "input_audio"}), "messages[1].content[0]", "only text parts"),
        (
            _chat(messages=[{"role": "assistant", "tool_calls": [{"id": "a"}]}]),
            "messages[0].tool_calls[0].function",
            "Field required",
        ),
        (_chat(tools=[{"type": "function"}]), "tools[0].function", "Field required"),
        (_chat(tools=[{"type": "custom", "custom": {}}]), "tools[0].type", "'function'"),
        (_chat(temperature="1"), "temperature", "valid number, got a string"),
        (_chat(temperature="1", top_p="1", n="2"), "n", "(and 2 more wrong fields)"),
        (_chat(temperature=True), "temperature", "valid number, got true"),
        (_chat(temperature=-0.1), "temperature", "-0.1; it must be 0 or more"),
        (_chat(top_p=0), "top_p", "must be in (0, 1]"),
        (_chat(n=0), "n", "n is 0; it must be between 1 and 64"),
        (_chat(n=65), "n", "n is 65"),
        (_chat(n=1.5), "n", "valid integer, got 1.5"),
        (_chat(top_k=-2), "top_k", "top_k is -2"),
        (_chat(top_k=2**31), "top_k", "got 2147483648"),
        (_chat(seed=2**63), "seed", "64-bit"),
        (_chat(max_tokens=0), "max_tokens", "max_tokens is 0; it must be at least 1"),
        (_chat(max_tokens=513), "max_tokens", "max_tokens is 513; it must be at most"),
        (_chat(max_completion_tokens=-1), "max_completion_tokens", "must be at least 1"),
        (_chat(max_tokens=4, min_tokens=5), "min_tokens", "at most max_tokens, which is 4"),
        (_chat(min_tokens=500), "min_tokens", "leaves room for"),
        (_chat(logprobs=3), "logprobs", "valid boolean, got 3"),
        (_chat(top_logprobs=3), "top_logprobs", "logprobs is not true"),
        (
            _chat(logprobs=True, top_logprobs=21),
            "top_logprobs",
            "top_logprobs is 21; it must be at most 20",
        ),
        (_chat(logprobs=True, top_logprobs=-2), "top_logprobs", "top_logprobs is -2"),
        (
            _chat(logprobs=True, top_logprobs=-1),
            "top_logprobs",
            "top_logprobs is -1, the whole vocabulary of 261; it must be at most 20",
        ),
        (_chat(prompt_logprobs=21), "prompt_logprobs", "prompt_logprobs is 21"),
        (_chat(stop=5), "stop", "got 5"),
        (_chat(stop=["a", 5]), "stop[1]", "got 5"),
        (_chat(stop=["a"] * 17), "stop", "17 strings; at most 16"),
        (_chat(stop="a" * 1001), "stop", "1,001 characters; at most 1,000"),
        (_chat(stop_token_ids=[261]), "stop_token_ids", "261; token ids are between 0 and 260"),
        (_chat(allowed_token_ids=[]), "allowed_token_ids", "at least 1 id"),
        (_chat(allowed_token_ids=[-1]), "allowed_token_ids", "allowed_token_ids[0] is -1"),
        (_chat(logprob_token_ids=[1] * 1025), "logprob_token_ids", "1,025 entries"),
        (_chat(logit_bias={"a": 1}), "logit_bias", "keys are token ids"),
        (_chat(logit_bias={"-1": 1}), "logit_bias", "keys are token ids"),
        (_chat(logit_bias={"261": 1}), "logit_bias", "261"),
        (_chat(logit_bias={"1": 100.5}), "logit_bias.1", "100.5; it must be between -100 and 100"),
        (_chat(logit_bias={"1": "a"}), "logit_bias.1", "got a string"),
        (_chat(bad_words=["a", "  "]), "bad_words", "empty word"),
        (_chat(bad_words=["a"] * 513), "bad_words", "513 words; at most 512"),
        (_chat(bad_words=["a" * 1001]), "bad_words", "1,001 characters"),
        (_chat(stream_options={}), "stream_options", "stream is not true"),
        (
            _chat(stream=True, stream_options={"include_usage": 1}),
            "stream_options.include_usage",
            "got 1",
        ),
        (_chat(cache_salt=""), "cache_salt", "at least 1 character"),
        (_chat(user=5), "user", "got 5"),
        (_chat(chat_template="{{ 1 }}"), "chat_template", "not allowed"),
        (
            _chat(chat_template_kwargs={"messages": []}),
            "chat_template_kwargs.messages",
            "may not set messages",
        ),
        (
            _chat(continue_final_message=True, add_generation_prompt=True),
            "continue_final_message",
            "cannot both be true",
        ),
        (_chat(use_beam_search=True), "use_beam_search", "not supported"),
        (_chat(truncate_prompt_tokens=4), "truncate_prompt_tokens", "not supported"),
    ],
)
def test_a_wrong_chat_request_is_refused(
    renderer: Renderer, body: bytes, param: str, says: str
) -> None:
    error = _refusal(renderer.render_chat, body)
    assert (error.param, says in error.message) == (param, True), error.message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{}", "prompt", "Field required"),
        (_completion(prompt=None), "prompt", "Field required"),
        (_completion(prompt=5), "prompt", "got 5"),
        (_completion(prompt=""), "prompt", "prompt is empty"),
        (_completion(prompt=["a", ""]), "prompt[1]", "prompt[1] is empty"),
        (_completion(prompt=[]), "prompt", "prompt is empty"),
        (_completion(prompt=[[1], []]), "prompt[1]", "prompt[1] is empty"),
        (_completion(prompt=[-1]), "prompt", "prompt[0] is -1; token ids are between 0 and 260"),
        (_completion(prompt=[5, 261]), "prompt", "prompt[1] is 261"),
        (_completion(prompt=[[5], [2**31]]), "prompt[1]", "prompt[1][0] is 2147483648"),
        (_completion(prompt=[5, "a"]), "prompt[1]", "got a string"),
        (_completion(prompt=[True]), "prompt[0]", "got true"),
        (_completion(prompt=["a"] * 1025), "prompt", "1,025 prompts; at most 1,024"),
        (_completion(max_tokens=0), "max_tokens", "max_tokens is 0; it must be at least 1"),
        (_completion(max_tokens=-1, echo=True), "max_tokens", "must be at least 0"),
        (_completion(logprobs=21), "logprobs", "logprobs is 21; it must be at most 20"),
        (_completion(logprobs="3"), "logprobs", "valid integer, got a string"),
        (_completion(logprobs=2**31), "logprobs", "equal to 2147483647, got 2147483648"),
        (_completion(logprobs=True, top_logprobs=21), "top_logprobs", "top_logprobs is 21"),
        (_completion(logprobs=3, top_logprobs=3), "top_logprobs", "logprobs is not true"),
        (_completion(best_of=2), "best_of", "best_of is 2; only the value of n, 1"),
        (_completion(suffix="a"), "suffix", "not supported"),
        (_completion(prompt_embeds="a"), "prompt_embeds", "not supported"),
    ],
)
def test_a_wrong_completion_request_is_refused(
    renderer: Renderer, body: bytes, param: str, says: str
) -> None:
    error = _refusal(renderer.render_completion, body)
    assert (error.param, says in error.message) == (param, True), error.message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{}", "tokens", "Field required"),
        (b'{"tokens": "a"}', "tokens", "got a string"),
        (b'{"tokens": [1, -1]}', "tokens[1]", "tokens[1] is -1"),
        (b'{"tokens": [261]}', "tokens[0]", "261; token ids are between 0 and 260"),
        (b'{"tokens": [4294967296]}', "tokens[0]", "4294967296"),
    ],
)
def test_wrong_tokens_are_refused(renderer: Renderer, body: bytes, param: str, says: str) -> None:
    error = _refusal(renderer.detokenize, body)
    assert (error.param, says in error.message) == (param, True), error.message


def test_another_model_is_not_found(renderer: Renderer) -> None:
    calls: list[tuple[Callable[[bytes], object], bytes]] = [
        (renderer.render_chat, _chat(model="gpt-4")),
        (renderer.render_completion, _completion(model="gpt-4")),
        (renderer.tokenize, _chat(model="gpt-4")),
        (renderer.tokenize, _completion(model="gpt-4")),
        (renderer.detokenize, b'{"model": "gpt-4", "tokens": []}'),
    ]
    for call, body in calls:
        with pytest.raises(ModelNotFoundError) as error:
            call(body)
        assert error.value.message == "The model `gpt-4` does not exist; this server has `toy`"
        assert error.value.param == "model"


@pytest.mark.parametrize("num_chars", [600, 50_000])
def test_a_prompt_over_the_context_names_limit_and_value(
    renderer: Renderer, num_chars: int
) -> None:
    text = "a" * num_chars
    calls: list[tuple[Callable[[bytes], object], bytes, str]] = [
        (renderer.render_chat, _chat(messages=[{"role": "user", "content": text}]), "messages"),
        (renderer.render_completion, _completion(prompt=text), "prompt"),
    ]
    for call, body, param in calls:
        with pytest.raises(ContextLengthError) as error:
            call(body)
        assert error.value.param == param
        assert "limit is" in error.value.message
        # A text that no tokens could cover is refused before it is encoded.
        assert ("characters" in error.value.message) == (num_chars == 50_000)


def test_an_error_does_not_repeat_the_text_of_the_request(renderer: Renderer) -> None:
    error = _refusal(renderer.render_chat, _chat(temperature="a secret"))
    assert "secret" not in error.message


def test_null_means_absent_everywhere(renderer: Renderer) -> None:
    nulls = dict.fromkeys(
        ["model", "temperature", "n", "stop", "min_tokens", "skip_special_tokens", "tools"]
    )
    rendered = renderer.render_chat(_chat(**nulls), request_id="a")
    assert rendered == renderer.render_chat(_chat(), request_id="a")


def test_null_means_absent_inside_objects_too(renderer: Renderer) -> None:
    parts = [{"type": "text", "text": "hi", "refusal": None}]
    options = {"include_usage": None, "continuous_usage_stats": None}
    body = _chat(messages=[{"role": "user", "content": parts}], stream=True, stream_options=options)
    rendered = renderer.render_chat(body, request_id="a")
    plain = renderer.render_chat(_chat(stream=True, stream_options={}), request_id="a")
    assert rendered.spec == plain.spec
    assert rendered.requests[0].token_ids == plain.requests[0].token_ids
