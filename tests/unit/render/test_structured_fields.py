"""Which output a request asks for, in OpenAI's fields and in vLLM's, and what is refused where."""

import json
from typing import Any

import pytest

from triptych.errors import InvalidRequestError
from triptych.wire import StructuredOutputs
from triptych_render.renderer import Renderer, generate_request_body

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def render(renderer: Renderer, endpoint: str, **fields: Any) -> StructuredOutputs | None:
    if endpoint == "chat":
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        rendered = renderer.render_chat(json.dumps(body).encode())
    else:
        rendered = renderer.render_completion(json.dumps({"prompt": "hi", **fields}).encode())
    (request,) = rendered.requests
    assert request.tokenizer_fingerprint == rendered.spec.tokenizer_fingerprint
    return request.sampling_params.structured_outputs


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": None, "guided_regex": None}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            StructuredOutputs(json=SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA)),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
            StructuredOutputs(json=json.dumps(SCHEMA), disable_any_whitespace=True),
        ),
        ({"structured_outputs": {"regex": "a+", "json": None}}, StructuredOutputs(regex="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=["a", "b"])),
        ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
        ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
        ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
        ({"guided_choice": ["a"]}, StructuredOutputs(choice=["a"])),
        ({"guided_grammar": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"')),
    ],
)
def test_field_becomes_structured_outputs(
    renderer: Renderer, endpoint: str, fields: dict[str, Any], wanted: StructuredOutputs | None
) -> None:
    assert render(renderer, endpoint, **fields) == wanted


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "schema": {"properties": {"a": {"items": {"type": "strin"}}}},
                    },
                }
            },
            "response_format.json_schema.schema.properties.a.items.type",
            "must be of object",
        ),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
            "only one",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "str"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "not empty"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]", "str"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        (
            {"structured_outputs": {"json": {"not": {}}}},
            "structured_outputs.json.not",
            "cannot be held",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "not supported",
        ),
        ({"guided_json": {"if": {}}}, "guided_json.if", "cannot be held"),
        ({"guided_regex": "a" * 131_073}, "guided_regex", "131,073 characters, limit is 131,072"),
        ({"guided_choice": ["a" * 99_999] * 2}, "guided_choice", "limit is 131,072"),
    ],
)
def test_what_cannot_be_held_is_refused_in_the_words_of_the_request(
    renderer: Renderer, fields: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        render(renderer, "chat", **fields)
    assert (error.value.param, says in error.value.message) == (param, True), error.value.message


def test_generate_body_holds_the_set_fields_alone(renderer: Renderer) -> None:
    body = {"prompt": "hi", "structured_outputs": {"regex": "a+"}}
    (request,) = renderer.render_completion(json.dumps(body).encode()).requests
    sent = json.loads(generate_request_body(request))
    assert sent["sampling_params"]["structured_outputs"] == {"regex": "a+"}
    assert sent["tokenizer_fingerprint"] == request.tokenizer_fingerprint
