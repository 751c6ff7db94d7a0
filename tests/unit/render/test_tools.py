"""Tool choices: what holds the answer, what goes to derender, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError
from triptych.wire import StructuredOutputs
from triptych_generate.bindings import compile_grammar, make_compiler
from triptych_generate.constraint import Constraint
from triptych_render.call_grammar import text_without
from triptych_render.renderer import Renderer

pytestmark = pytest.mark.model

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "get_weather")]
BYTES = make_compiler([*(bytes([code]) for code in range(256)), b""])
ADD = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def renderers(smollm2_dir: Path) -> dict[str, Renderer]:
    return {
        name: Renderer.from_directory(smollm2_dir, model="m", response_template=name)
        for name in ("none", "think", "qwen3", "llama3", "hermes", "functiongemma")
    }


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def held(renderer: Renderer, **fields: Any) -> Any:
    """The structural tag of a request with tools; None where the answer is free."""
    plain = renderer.render_chat(body(tools=TOOLS)).requests[0]
    made = renderer.render_chat(body(**{"tools": TOOLS, **fields})).requests[0]
    assert made.token_ids == plain.token_ids
    outputs = made.sampling_params.structured_outputs
    return outputs and json.loads(outputs.structural_tag or "")["format"]


def texts(part: Any) -> list[str]:
    """All constant texts of a tag, in order."""
    if isinstance(part, list):
        return [text for each in part for text in texts(each)]
    if not isinstance(part, dict):
        return []
    own = [part["value"]] if part.get("type") == "const_string" else []
    return own + texts([value for key, value in part.items() if key != "json_schema"])


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_free_choice_holds_nothing(renderers: dict[str, Renderer], choice: str) -> None:
    assert held(renderers["qwen3"], tool_choice=choice) is None


@pytest.mark.parametrize(
    ("family", "choice", "expected"),
    [
        (
            "hermes",
            ADD,
            ['<tool_call>\n{"name": "add", "arguments": ', "}\n</tool_call>"],
        ),
        (
            "qwen3",
            "required",
            [
                "<think>",
                "</think>\n\n",
                *('<tool_call>\n{"name": "add", "arguments": ', "}\n</tool_call>"),
                *('<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>"),
            ],
        ),
        ("llama3", ADD, ['{"name": "add", "parameters": ', "}"]),
    ],
)
def test_one_required_call_is_held_as_the_family_writes_it(
    renderers: dict[str, Renderer], family: str, choice: Any, expected: list[str]
) -> None:
    made = held(renderers[family], tool_choice=choice, parallel_tool_calls=False)
    assert texts(made) == expected


def test_parallel_calls_may_follow_the_first(renderers: dict[str, Renderer]) -> None:
    first, more = held(renderers["hermes"], tool_choice=ADD)["elements"]
    assert more["type"] == "star"
    assert texts(more) == ["\n", *texts(first)]


def test_markers_that_are_added_tokens_are_held_by_their_ids(
    smollm2_dir: Path, tmp_path: Path
) -> None:
    tokenizer = json.loads((smollm2_dir / "tokenizer.json").read_text())
    markers = {3: "[TOOL_CALLS]", 4: "[ARGS]"}
    for token in tokenizer["added_tokens"]:
        token["content"] = markers.get(token["id"], token["content"])
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        markers.get(vocab[piece], piece): vocab[piece] for piece in vocab
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((smollm2_dir / name).read_bytes())
    renderer = Renderer.from_directory(tmp_path, model="m", response_template="mistral-args")
    made = held(renderer, tool_choice=ADD, parallel_tool_calls=False)
    call = made["elements"][-1]["elements"]
    assert [part.get("token", part.get("value")) for part in call] == [3, "add", 4, None]


@pytest.mark.parametrize(
    ("prompt_end", "starts_with"),
    [
        ("", "optional"),  # of a thought
        ("<think>{{ '\\n' }}", "grammar"),  # of its text
        ("<think>hm</think>{{ '\\n\\n' }}", "const_string"),  # of the call
    ],
)
def test_reasoning_goes_on_where_the_prompt_leaves_it(
    smollm2_dir: Path, prompt_end: str, starts_with: str
) -> None:
    renderer = Renderer.from_directory(
        smollm2_dir, model="m", response_template="qwen3", allow_request_templates=True
    )
    template = "{{ messages[0].content }}<|im_start|>assistant\n" + prompt_end
    fields: dict[str, Any] = {"chat_template": template, "tool_choice": ADD, "tools": TOOLS}
    outputs = renderer.render_chat(body(**fields)).requests[0].sampling_params.structured_outputs
    assert outputs is not None
    first = json.loads(outputs.structural_tag or "")["format"]["elements"][0]
    assert first.get("elements", [first])[0]["type"] == starts_with


@given(
    st.lists(st.text("<>/ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.text("<>/abé", max_size=12),
)
def test_text_without_ends_is_exactly_that(ends: list[str], text: str) -> None:
    outputs = StructuredOutputs(grammar=text_without(ends))
    constraint = Constraint(compile_grammar(BYTES, outputs), vocab_size=257, end_ids={256})
    output = list(text.encode())
    is_held = constraint.follow(output) is None and bool(constraint.allowed(output)[256])
    assert is_held == (not any(end in text for end in ends))


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, ".properties.a.not"),
        ({"type": "array"}, ""),
        ({"anyOf": [{"type": "object"}]}, ""),
        ({"type": "object", "properties": {"a": {"const": "x" * 200_000}}}, None),
    ],
)
def test_parameters_that_cannot_be_held_are_refused_with_their_place(
    renderers: dict[str, Renderer], parameters: Any, param: str | None
) -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": parameters}}
    fields = {"tools": [*TOOLS, bad], "tool_choice": "required"}
    with pytest.raises(InvalidRequestError) as caught:
        renderers["qwen3"].render_chat(body(**fields))
    place = "tools" if param is None else f"tools[2].function.parameters{param}"
    assert caught.value.param == place
    assert caught.value.message.startswith(place)
    renderers["qwen3"].render_chat(body(**{**fields, "tool_choice": "auto"}))
    renderers["qwen3"].render_chat(body(**{**fields, "tool_choice": ADD}))


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {}}])
def test_a_function_without_parameters_takes_an_empty_object(
    renderers: dict[str, Renderer], parameters: Any
) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    made = held(renderers["llama3"], tools=[tool], tool_choice="required")
    _, schema, _ = made["elements"][0]["elements"]
    assert schema["json_schema"]["type"] == "object"
    assert schema["json_schema"]["properties"] == {}


def test_response_format_is_about_content_only(renderers: dict[str, Renderer]) -> None:
    fields = {"response_format": {"type": "json_object"}, "tool_choice": ADD}
    assert texts(held(renderers["hermes"], **fields))[0].startswith("<tool_call>")


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
        ("functiongemma", {"tool_choice": "required", "tools": TOOLS}, "call_syntax"),
        (
            "qwen3",
            {"tool_choice": ADD, "tools": TOOLS, "guided_regex": "a"},
            "guided_regex cannot be set",
        ),
        (
            "qwen3",
            {"tool_choice": ADD, "tools": TOOLS, "continue_final_message": True},
            "continue_final_message",
        ),
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
