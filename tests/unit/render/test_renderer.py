"""The renderer as a whole: request ids, templates by name, tokenize, detokenize, info."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError, SetupError
from triptych.wire import GenerateRequest
from triptych_render.renderer import Renderer, generate_request_body

_USER = {"role": "user", "content": "hi"}


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _text(renderer: Renderer, ids: list[int]) -> str:
    text: str = json.loads(renderer.detokenize(_json(tokens=ids)))["prompt"]
    return text


def _chat_text(renderer: Renderer, **fields: Any) -> str:
    body = _json(**{"messages": [_USER], **fields})
    return _text(renderer, renderer.render_chat(body).requests[0].token_ids)


def test_request_ids_begin_with_the_callers(renderer: Renderer) -> None:
    chat = renderer.render_chat(_json(messages=[_USER]), request_id="abc")
    assert chat.requests[0].request_id == "chatcmpl-abc"
    one = renderer.render_completion(_json(prompt="a"), request_id="abc")
    assert one.requests[0].request_id == "cmpl-abc"
    two = renderer.render_completion(_json(prompt=["a", "b"]), request_id="cmpl-abc")
    assert [request.request_id for request in two.requests] == ["cmpl-abc-0", "cmpl-abc-1"]


def test_request_ids_differ_without_a_callers(renderer: Renderer) -> None:
    ids = {renderer.render_chat(_json(messages=[_USER])).requests[0].request_id for _ in range(9)}
    assert len(ids) == 9


def test_body_for_generate_reads_back_as_the_request(renderer: Renderer) -> None:
    body = _json(
        messages=[_USER],
        stream=True,
        stream_options={"include_usage": True},
        logit_bias={"9": 1.5},
        bad_words=["a"],
        seed=3,
        kv_transfer_params={"a": [1]},
        return_token_ids=False,
    )
    request = renderer.render_chat(body).requests[0]
    encoded = generate_request_body(request)
    assert msgspec.json.decode(encoded, type=GenerateRequest) == request
    assert None not in json.loads(encoded)["sampling_params"].values()


def test_model_may_be_left_out_and_is_always_answered(renderer: Renderer) -> None:
    rendered = renderer.render_chat(_json(messages=[_USER]))
    assert (rendered.requests[0].model, rendered.spec.model) == ("toy", "toy")


def test_continued_message_stays_open(renderer: Renderer) -> None:
    messages = [_USER, {"role": "assistant", "content": "It is "}]
    text = _chat_text(renderer, messages=messages, continue_final_message=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nIt is "


def test_generation_prompt_can_be_left_off(renderer: Renderer) -> None:
    text = _chat_text(renderer, add_generation_prompt=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chat_template_kwargs": {"thinking": False}},
        {"chat_template_kwargs": {"thinking": True}},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"documents": [{"title": "t", "text": "x"}]},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
def test_chat_and_tokenize_agree(
    make_renderer: Callable[..., Renderer], options: dict[str, Any]
) -> None:
    source = (
        "{{ thinking }}|{{ reasoning_effort }}|{{ tools }}|{{ documents }}|"
        "{{ add_generation_prompt }}{{ messages[0].content }}."
    )
    renderer = make_renderer(template=source)
    body = _json(messages=[_USER], **options)
    tokenized = json.loads(renderer.tokenize(body))
    ids = renderer.render_chat(body).requests[0].token_ids
    assert tokenized["tokens"] == ids
    assert tokenized["count"] == len(ids)
    kwargs = options.get("chat_template_kwargs", {})
    shown = _text(renderer, ids).split("|")
    assert shown[0] == str(kwargs.get("thinking", ""))
    assert shown[1] == kwargs.get("reasoning_effort", options.get("reasoning_effort", ""))
    assert (shown[2] == "None") == ("tools" not in options)


def test_tool_template_is_taken_when_there_are_tools(
    make_renderer: Callable[..., Renderer],
) -> None:
    named = [
        {"name": "default", "template": "D{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T{{ messages[0].content }}"},
    ]
    renderer = make_renderer(template=named)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert _chat_text(renderer) == "Dhi"
    assert _chat_text(renderer, tools=[]) == "Dhi"
    assert _chat_text(renderer, tools=tools) == "Thi"


def test_templates_see_objects_in_the_order_of_the_request(
    make_renderer: Callable[..., Renderer],
) -> None:
    """As in ``apply_chat_template``; ``openai.pydantic_function_tool`` has another than ours."""
    renderer = make_renderer(template="{{ tools | tojson }}{{ messages | tojson }}")
    function = {"parameters": {"type": "object"}, "strict": True, "description": "d", "name": "f"}
    tools = [{"function": function, "type": "function"}]
    messages = [{"content": "hi", "name": "me", "role": "user"}]
    text = _chat_text(renderer, tools=tools, messages=messages)
    assert text == json.dumps(tools) + json.dumps(messages)


def test_template_file_wins_over_the_config(make_model: Callable[..., Path]) -> None:
    directory = make_model(template="C{{ messages[0].content }}")
    (directory / "chat_template.jinja").write_text("F{{ messages[0].content }}{{ bos_token }}")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    renderer = Renderer.from_directory(directory, model="toy")
    assert _chat_text(renderer) == "Fhi<s>"
    assert _chat_text(renderer, tools=[{"type": "function", "function": {"name": "f"}}]) == "T"


def test_a_model_without_a_template_serves_completions_only(
    make_renderer: Callable[..., Renderer],
) -> None:
    renderer = make_renderer(template=None)
    assert renderer.render_completion(_json(prompt="hi")).requests
    for call in (renderer.render_chat, renderer.tokenize):
        with pytest.raises(InvalidRequestError, match="no chat template"):
            call(_json(messages=[_USER]))


def test_a_requests_own_template_is_used_where_allowed(
    make_renderer: Callable[..., Renderer],
) -> None:
    renderer = make_renderer(allow_request_templates=True)
    assert _chat_text(renderer, chat_template="<{{ messages[0].content }}>") == "<hi>"
    with pytest.raises(InvalidRequestError) as error:
        _chat_text(renderer, chat_template="{% if %}")
    assert error.value.param == "chat_template"


def test_tool_calls_in_the_history_render_the_same_twice(renderer: Renderer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"b": 1}'}}
    messages = [
        _USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "4"},
    ]
    first = _chat_text(renderer, messages=messages)
    assert first == _chat_text(renderer, messages=messages)
    longer = [*messages, {"role": "assistant", "content": "It is 4."}, _USER]
    history = _chat_text(renderer, messages=messages, add_generation_prompt=False)
    assert _chat_text(renderer, messages=longer).startswith(history)


def test_token_strings_are_the_vocabularys_own(renderer: Renderer) -> None:
    answer = json.loads(renderer.tokenize(_json(prompt="<s> é", return_token_strs=True)))
    assert answer["token_strs"] == ["<s>", "Ġ", "Ã", "©"]
    assert answer["count"] == 4
    assert answer["max_model_len"] == renderer.max_model_len


@given(text=st.text(max_size=60))
def test_detokenize_reverses_tokenize(renderer: Renderer, text: str) -> None:
    ids = json.loads(renderer.tokenize(_json(prompt=text)))["tokens"]
    assert _text(renderer, ids) == text


def test_padded_vocabulary_ids_have_no_text(make_renderer: Callable[..., Renderer]) -> None:
    renderer = make_renderer(config={"vocab_size": 300})
    assert _text(renderer, [69, 299, 70]) == "ab"


def test_tokenizer_info_says_what_is_loaded(make_model: Callable[..., Path]) -> None:
    directory = make_model(template="{{ messages }}")
    info = json.loads(Renderer.from_directory(directory, model="toy").tokenizer_info())
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest()
    assert info == {
        "model": "toy",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "kind": "BPE",
        "vocab_size": 261,
        "max_model_len": 512,
        "fingerprint": digest[:16],
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "chat_template": "{{ messages }}",
    }


def test_sizes_come_from_a_nested_text_config_too(make_model: Callable[..., Path]) -> None:
    text_config = {"vocab_size": 270, "max_position_embeddings": 99}
    renderer = Renderer.from_directory(
        make_model(config={"text_config": text_config, "scale": float("inf")}), model="toy"
    )
    info = json.loads(renderer.tokenizer_info())
    assert (info["vocab_size"], info["max_model_len"]) == (270, 99)


def test_a_shorter_context_can_be_set(make_model: Callable[..., Path]) -> None:
    renderer = Renderer.from_directory(make_model(), model="toy", max_model_len=64)
    assert renderer.max_model_len == 64


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "cannot read"),
        ("tokenizer.json", "{}", "is not a tokenizer"),
        ("config.json", "{", "not valid JSON"),
        ("config.json", "{}", "no context length"),
        ("config.json", '{"max_position_embeddings": 8}', "max_model_len is 16"),
        ("chat_template.jinja", "{% if %}", "chat template default is broken"),
    ],
)
def test_a_broken_directory_is_a_setup_error(
    make_model: Callable[..., Path], name: str, content: str | None, says: str
) -> None:
    directory = make_model()
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    max_model_len = 16 if "max_model_len" in says else None
    with pytest.raises(SetupError, match=says):
        Renderer.from_directory(directory, model="toy", max_model_len=max_model_len)


def test_a_missing_directory_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not exist"):
        Renderer.from_directory(tmp_path / "nothing", model="toy")
