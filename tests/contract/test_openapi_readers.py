"""The schemas of the OpenAPI documents against the readers themselves: both take the same bodies.

A body that a schema allows is refused only for what no schema can say (``refusals.RULES``).
A number without a fraction that is written with one (``1.0``) is an integer to JSON schema alone.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_documents import document, validator
from support.refusals import is_by_rule
from triptych.errors import InvalidRequestError
from triptych.http import decode_json
from triptych.sampling import Limits, check_request
from triptych.wire import GenerateRequest
from triptych_generate.http import AbortBody
from triptych_render.renderer import Renderer
from unit.derender.toys import byte_level_table, toy_derenderer
from unit.render.conftest import write_model

MESSAGES = [{"role": "user", "content": "x"}]
CHOICE = {"token_ids": [1], "index": 0}
ANSWER = {"request_id": "r", "choices": [CHOICE]}
LIMITS = Limits(vocab_size=261, max_model_len=512)
DERENDERER = toy_derenderer(byte_level_table())

Read = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a schema's bodies. ``around``: what the body is part of, with its place as None."""

    service: str
    read: str
    base: dict[str, Any]
    around: str = "%s"


CHAT = '{"messages": [{"role": "user", "content": "x"}], %s}'
WHOLE = '{"generate_response": {"request_id": "r", "choices": [{"token_ids": [1]}]}, %s}'
SAMPLED = '{"token_ids": [1], "tokenizer_fingerprint": "f", "sampling_params": %s}'
READERS = {
    "ChatRequest": Reader("render", "chat", {"messages": MESSAGES}),
    "CompletionRequest": Reader("render", "completion", {"prompt": "x"}),
    "TokenizeChat": Reader("render", "tokenize", {"messages": MESSAGES}),
    "TokenizePrompt": Reader("render", "tokenize", {"prompt": "x"}),
    "DetokenizeRequest": Reader("render", "detokenize", {"tokens": [1]}),
    "Message": Reader("render", "chat", MESSAGES[0], '{"messages": [%s]}'),
    "ContentPart": Reader(
        "render",
        "chat",
        {"type": "text", "text": "x"},
        '{"messages": [{"role": "user", "content": [%s]}]}',
    ),
    "ToolCall": Reader(
        "render",
        "chat",
        {"function": {"name": "f"}},
        '{"messages": [{"role": "assistant", "tool_calls": [%s]}]}',
    ),
    "Tool": Reader(
        "render", "chat", {"type": "function", "function": {"name": "f"}}, CHAT % '"tools": [%s]'
    ),
    "ResponseFormat": Reader("render", "chat", {"type": "text"}, CHAT % '"response_format": %s'),
    "StructuredOutputs": Reader(
        "render", "chat", {"regex": "a"}, CHAT % '"structured_outputs": %s'
    ),
    "GenerateRequest": Reader("generate", "generate", {"token_ids": [1, 2], "sampling_params": {}}),
    "SamplingParams": Reader("generate", "generate", {}, SAMPLED),
    "WireStructuredOutputs": Reader(
        "render", "generate", {"regex": "a"}, SAMPLED % '{"structured_outputs": %s}'
    ),
    "AbortRequest": Reader("generate", "abort", {"request_ids": []}),
    "DerenderChat": Reader("derender", "derender_chat", {"generate_response": ANSWER}),
    "DerenderCompletion": Reader("derender", "derender_completion", {"generate_response": ANSWER}),
    "ReplyToChat": Reader("derender", "derender_chat", {}, WHOLE % '"chat_request": %s'),
    "ReplyToCompletion": Reader(
        "derender", "derender_completion", {}, WHOLE % '"completion_request": %s'
    ),
    "SentResponse": Reader("derender", "derender_chat", ANSWER, '{"generate_response": %s}'),
    "SentChunk": Reader("derender", "derender_chat", ANSWER, '{"generate_chunk": %s}'),
    "SentChoice": Reader(
        "derender",
        "derender_chat",
        CHOICE,
        '{"generate_response": {"request_id": "r", "choices": [%s]}}',
    ),
}
#: Each is tried as each field of each schema.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 64, 65, 3.5, -2.5, 100, 101, -101, 1_000_000, 1_000_001),
    *(2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 0.0005),
    *("", " ", "x", "raw", "tokens", "auto", "required", "text", "medium", "user", "assistant"),
    *("json_schema", "a" * 1000, "a" * 1001, "a" * 131_073),
    *([], [0], [-1], [2**31 - 1], ["x"], [""], [" "], [[1]], [[]], [True], [None], [2.5]),
    *(["text"], [1, [1]], ["x"] * 17, ["x"] * 513, [1] * 1025, ["a" * 1001], [{}]),
    *({}, {"1": 1}, {"x": 1}, {"1": 101}, {"-1": 1}, {"01": 1}, {"messages": 1}, {"k": "v"}),
    *({"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}),
    {"type": "json_schema", "json_schema": {"schema": {}}},
    *({"name": "f"}, {"function": {"name": "f"}}, {"function": {"name": ""}}, {"schema": {}}),
    *({"json": {}}, {"regex": "a"}, {"json": {}, "regex": "a"}, {"json_object": True}),
    *({"json_object": False}, {"choice": []}, {"include_usage": True}, {"include_usage": None}),
    *(MESSAGES, [{"type": "function", "function": {"name": "f"}}], [{"type": "text", "text": "x"}]),
    *(ANSWER, {**ANSWER, "choices": []}, [ANSWER], {"prompt_tokens": 1}),
    *({"content": []}, {"content": [{"token_id": 1, "logprob": 0}]}, {"cached_tokens": -1}),
    *([{"1": {"logprob": 0}}, None], [{"a": {"logprob": 0}}]),
]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Read]:
    """What reads bodies, by the names in ``READERS``."""
    model = write_model(tmp_path_factory.mktemp("toy"))
    renderer = Renderer.from_directory(model, model="toy")
    return {
        "chat": renderer.render_chat,
        "completion": renderer.render_completion,
        "tokenize": renderer.tokenize,
        "detokenize": renderer.detokenize,
        "generate": lambda body: check_request(decode_json(body, GenerateRequest), LIMITS),
        "abort": lambda body: decode_json(body, AbortBody),
        "derender_chat": DERENDERER.derender_chat,
        "derender_completion": DERENDERER.derender_completion,
    }


def schema_name(name: str) -> str:
    """The tokenizer's endpoint takes two kinds of bodies; its schema says which is which."""
    return "TokenizeRequest" if name.startswith("Tokenize") else name


def check_alike(name: str, body: dict[str, Any], readers: dict[str, Read]) -> None:
    reader = READERS[name]
    is_allowed = validator(reader.service, schema_name(name)).is_valid(body)
    refusal = None
    try:
        readers[reader.read]((reader.around % json.dumps(body)).encode())
    except InvalidRequestError as error:
        refusal = error.message
    if is_allowed:
        assert refusal is None or is_by_rule(refusal), body
    else:
        assert refusal is not None, body


def fields_of(name: str) -> dict[str, Any]:
    schemas = document(READERS[name].service)["components"]["schemas"]
    fields: dict[str, Any] = schemas[name]["properties"]
    return fields


@pytest.mark.parametrize("name", READERS)
def test_schema_and_reader_take_the_same_values_of_each_field(
    name: str, readers: dict[str, Read]
) -> None:
    base = READERS[name].base
    check_alike(name, base, readers)
    for field in fields_of(name):
        check_alike(name, {key: value for key, value in base.items() if key != field}, readers)
        for value in VALUES:
            is_name = field == "model" and isinstance(value, str)  # another model is a 404
            if not is_name:
                check_alike(name, {**base, field: value}, readers)


@pytest.mark.parametrize(
    "name",
    ["ChatRequest", "CompletionRequest", "GenerateRequest", "DerenderChat", "SamplingParams"],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_schema_and_reader_take_the_same_bodies(
    name: str, data: st.DataObject, readers: dict[str, Read]
) -> None:
    fields = [field for field in fields_of(name) if field != "model"]
    drawn = data.draw(st.lists(st.sampled_from(fields), min_size=2, max_size=6, unique=True))
    body = dict(READERS[name].base)
    for field in drawn:
        body[field] = data.draw(st.sampled_from(values_of(name, field)))
    check_alike(name, body, readers)


@cache
def values_of(name: str, field: str) -> list[Any]:
    """The values that the schema of ``name`` allows for ``field`` alone."""
    is_valid = validator(READERS[name].service, name).is_valid
    base = READERS[name].base
    return [value for value in VALUES if is_valid({**base, field: value})] or VALUES
