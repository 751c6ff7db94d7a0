"""Tool choices: what is added to the prompt, what goes to derender, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from triptych.errors import InvalidRequestError
from triptych_render.renderer import Renderer

pytestmark = pytest.mark.model

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "get_weather")]
ADD = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def renderers(smollm2_dir: Path) -> dict[str, Renderer]:
    return {
        name: Renderer.from_directory(smollm2_dir, model="m", response_template=name)
        for name in ("none", "think", "qwen3", "llama3")
    }


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def added(renderer: Renderer, **fields: Any) -> str:
    """What a tool choice adds to the prompt."""
    plain = renderer.render_chat(body(tools=TOOLS)).requests[0].token_ids
    ids = renderer.render_chat(body(tools=TOOLS, **fields)).requests[0].token_ids
    assert ids[: len(plain)] == plain
    text = renderer.detokenize(json.dumps({"tokens": ids[len(plain) :]}).encode())
    return str(json.loads(text)["prompt"])


@pytest.mark.parametrize(
    ("family", "choice", "expected"),
    [
        ("qwen3", "auto", ""),
        ("qwen3", "none", ""),
        ("qwen3", "required", '<tool_call>\n{"name": "'),
        ("qwen3", ADD, '<tool_call>\n{"name": "add", "arguments": {'),
        ("llama3", ADD, '{"name": "add", "parameters": {'),
    ],
)
def test_a_required_call_begins_in_the_prompt(
    renderers: dict[str, Renderer], family: str, choice: Any, expected: str
) -> None:
    assert added(renderers[family], tool_choice=choice) == expected


def test_reasoning_that_the_prompt_opens_is_closed_before_a_required_call(
    smollm2_dir: Path,
) -> None:
    renderer = Renderer.from_directory(
        smollm2_dir, model="m", response_template="qwen3", allow_request_templates=True
    )
    template = "{{ messages[0].content }}<|im_start|>assistant\n<think>{{ '\\n' }}"
    fields: dict[str, Any] = {"chat_template": template, "tools": TOOLS}
    ids = renderer.render_chat(body(tool_choice=ADD, **fields)).requests[0].token_ids
    text = json.loads(renderer.detokenize(json.dumps({"tokens": ids}).encode()))["prompt"]
    expected = '<think>\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {'
    assert text.endswith(expected)


def test_the_spec_says_what_derender_needs(renderers: dict[str, Renderer]) -> None:
    fields = {"include_reasoning": False, "parallel_tool_calls": False}
    spec = renderers["qwen3"].render_chat(body(tools=TOOLS, tool_choice=ADD, **fields)).spec
    assert (spec.response_template, spec.tools) == ("qwen3", TOOLS)
    assert (spec.tool_choice, spec.tool_name) == ("required", "add")
    assert (spec.include_reasoning, spec.parallel_tool_calls) == (False, False)
    spec = renderers["none"].render_chat(body(tools=TOOLS, tool_choice="none")).spec
    assert (spec.response_template, spec.tools, spec.tool_choice) == ("none", [], "none")
    assert spec.include_reasoning
    assert spec.parallel_tool_calls


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("none", {"tool_choice": "required", "tools": TOOLS}, "--response-template"),
        ("think", {"tool_choice": ADD, "tools": TOOLS}, "--response-template"),
        ("qwen3", {"tool_choice": "required"}, "no tools"),
        ("qwen3", {"tool_choice": {"function": {"name": "sub"}}, "tools": TOOLS}, "'sub'"),
        ("qwen3", {"tool_choice": "any", "tools": TOOLS}, "required"),
        ("qwen3", {"tool_choice": {"type": "allowed_tools"}, "tools": TOOLS}, "required"),
        (
            "qwen3",
            {
                "tool_choice": {"function": {"name": 'a"b'}},
                "tools": [{"type": "function", "function": {"name": 'a"b'}}],
            },
            "letters",
        ),
    ],
)
def test_a_choice_that_cannot_be_served_is_refused(
    renderers: dict[str, Renderer], family: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        renderers[family].render_chat(body(**fields))
    assert caught.value.param == "tool_choice"
