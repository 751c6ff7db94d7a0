"""Chat templates against transformers' ``apply_chat_template``: the same text for the same chat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerFast

from triptych.errors import InvalidRequestError
from triptych_render.chat_request import Message
from triptych_render.template import ChatTemplate, PromptOptions

_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_MESSAGES = TypeAdapter(list[Message])

_PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
_TOOLS = (
    "{% if tools is defined and tools is not none %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</call>{% endfor %}\n{% endfor %}"
)
_DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}# Developer\n{% endif %}"
    "{{ m.content }}\n{% endfor %}"
)
_THINKING = (
    "{% for m in messages %}{% if m.reasoning_content is defined %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "<think></think>{% endif %}"
)
_DOCUMENTS = (
    "{% for d in documents or [] %}({{ d.title }}: {{ d.text }}){% endfor %}"
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}{% continue %}{% endif %}."
    "{% endfor %}"
)

_USER: dict[str, Any] = {"role": "user", "content": '  Grüße, 你好 <&> "x" '}
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a1", "type": "function", "function": {"name": "f", "arguments": '{"b": [1, "ü"]}'}}
    ],
}
#: transformers wants the arguments as an object.
_CALL_FOR_TRANSFORMERS = {
    "role": "assistant",
    "tool_calls": [
        {"id": "a1", "type": "function", "function": {"name": "f", "arguments": {"b": [1, "ü"]}}}
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "a1", "content": "4"}

_CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "plain": (_PLAIN, [{"role": "system", "content": "s"}, _USER], {}),
    "plain, no generation prompt": (_PLAIN, [_USER], {"add_generation_prompt": False}),
    "plain, continued": (
        _PLAIN,
        [_USER, {"role": "assistant", "content": "It is "}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "tools absent": (_TOOLS, [_USER], {}),
    "tools present": (_TOOLS, [_USER], {"tools": [_TOOL]}),
    "tool history": (_TOOLS, [_USER, _CALL, _RESULT], {"tools": [_TOOL]}),
    "developer known": (_DEVELOPER, [{"role": "developer", "content": "d"}, _USER], {}),
    "thinking off": (_THINKING, [_USER], {"enable_thinking": False}),
    "thinking on": (_THINKING, [_USER], {"enable_thinking": True}),
    "reasoning in history": (
        _THINKING,
        [_USER, {"role": "assistant", "content": "a", "reasoning_content": "why"}, _USER],
        {},
    ),
    "documents": (_DOCUMENTS, [_USER, _USER], {"documents": [{"title": "t", "text": "x"}]}),
}


def _text(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    known = {k: v for k, v in options.items() if k in PromptOptions.__struct_fields__}
    variables = {k: v for k, v in options.items() if k not in known}
    template = ChatTemplate(source, _SPECIAL_TOKENS)
    return template.render(
        _MESSAGES.validate_python(messages), PromptOptions(variables=variables, **known)
    )


@pytest.mark.parametrize("name", _CASES)
def test_template_text_equals_transformers(make_model: Callable[..., Path], name: str) -> None:
    source, messages, options = _CASES[name]
    reference = PreTrainedTokenizerFast(
        tokenizer_file=str(make_model() / "tokenizer.json"),
        chat_template=source,
        **_SPECIAL_TOKENS,
    )
    wanted = reference.apply_chat_template(
        [_CALL_FOR_TRANSFORMERS if message is _CALL else message for message in messages],
        tokenize=False,
        **{"add_generation_prompt": True, **options},
    )
    assert _text(source, messages, options) == wanted


def test_developer_becomes_system_where_the_template_does_not_know_it() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, _USER]
    assert _text(_PLAIN, messages, {}).startswith("<s>[system] Be brief.</s>[user]")


def test_text_parts_are_joined_by_line_ends() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "[user] a\nb</s>" in _text(_PLAIN, [{"role": "user", "content": parts}], {})


def test_template_that_reads_only_parts_gets_parts() -> None:
    source = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}"
        "<{{ part.text }}>{% endif %}{% endfor %}{% endfor %}"
    )
    assert _text(source, [{"role": "user", "content": "hello"}], {}) == "<hello>"


def test_template_that_reads_both_gets_strings() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}"
        "{% for part in m.content %}P{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert _text(source, [{"role": "user", "content": "hello"}], {}) == "Shello"


@pytest.mark.parametrize(
    "writes", ["{{ call.function.arguments }}", "{{ '```' + call.function.arguments + '```' }}"]
)
def test_template_that_writes_arguments_plainly_gets_json_text(writes: str) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
        f"{writes}{{% endfor %}}{{% endfor %}}"
    )
    assert '{"b": [1, "ü"]}' in _text(source, [_USER, _CALL], {})


def test_template_that_needs_content_gets_an_empty_one() -> None:
    source = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}"
    assert _text(source, [{"role": "user", "content": "q"}, _CALL], {}) == "user:q;assistant:;"


def test_template_that_asks_for_null_content_gets_it_and_shows_the_call() -> None:
    source = (
        "{% for m in messages %}{% if m['content'] is none %}{% for call in m['tool_calls'] %}"
        "<{{ call['function']['name'] }}>{% endfor %}{% else %}{{ m['content'] + ';' }}{% endif %}"
        "{% endfor %}"
    )
    assert _text(source, [{"role": "user", "content": "q"}, _CALL], {}) == "q;<f>"


def test_arguments_that_are_no_object_stay_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"cut": '}}
    messages = [_USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert '<call>f "{\\"cut\\": "</call>' in _text(_TOOLS, messages, {})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "'dict object' has no attribute 'nothing'"),
        ("{{ 1 // 0 }}", "modulo by zero"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}", "recursion"),
    ],
)
def test_template_that_fails_is_the_requests_error_in_one_line(source: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        _text(source, [_USER], {})
    assert said in error.value.message
    assert "\n" not in error.value.message
    assert len(error.value.message) < 300
