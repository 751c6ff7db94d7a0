"""Structured outputs through the running stack: the `openai` client, and the panels one by one."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from support.stack import Stack, running_stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

MESSAGES: Any = [{"role": "user", "content": "Invent a person. Answer in JSON."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "sea", "snow"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.gateway}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 100, **fields}
    return client.chat.completions.create(**asked)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 1, "n": 3}, {"seed": 2, "n": 3}])
def test_chat_answers_with_json_that_the_schema_accepts(
    client: openai.OpenAI, sampling: dict[str, Any]
) -> None:
    for choice in chat(client, response_format=FORMAT, **sampling).choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    fields = {"response_format": FORMAT, "seed": 5, "logprobs": True, "top_logprobs": 2}
    whole = chat(client, **fields).choices[0]
    pieces: list[str] = []
    entries: list[Any] = []
    for chunk in chat(client, stream=True, **fields):
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            entries += choice.logprobs.content if choice.logprobs else []
    assert "".join(pieces) == whole.message.content
    assert entries == whole.logprobs.content


@pytest.mark.parametrize("is_stream", [False, True])
def test_output_that_ends_without_a_stop_token_is_whole(
    client: openai.OpenAI, is_stream: bool
) -> None:
    outputs = {"structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": True}
    fields = {"extra_body": outputs, "temperature": 0, "stream": is_stream}
    answer = chat(client, **fields)
    if is_stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text in {"yes", "no"}


def test_client_parses_the_answer_into_its_own_model(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        is_true: bool
        certainty: Literal["low", "high"]

    parsed = client.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "Is snow white?"}],
        max_tokens=100,
        temperature=0,
        response_format=Answer,
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    fields = {"response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 30}
    choice = chat(client, **fields).choices[0]
    assert re.match(r"\s*\{", choice.message.content)
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"structured_outputs": {"regex": "[A-Z]{3}-\\d{2}"}}, "[A-Z]{3}-[0-9]{2}"),
        ({"structured_outputs": {"choice": ["yes", "no", "it depends"]}}, "yes|no|it depends"),
        ({"structured_outputs": {"grammar": 'root ::= "a" root "b" | "c"'}}, "a*cb*"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
    ],
)
def test_answer_matches(client: openai.OpenAI, outputs: dict[str, Any], pattern: str) -> None:
    answer = chat(client, extra_body=outputs, seed=3, n=4, max_tokens=20)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.message.content)
    assert any(choice.finish_reason == "stop" for choice in answer.choices)


def test_completions_of_several_prompts_are_held(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2",
        prompt=["Two and two is ", "A dozen is "],
        max_tokens=4,
        temperature=0,
        extra_body={"structured_outputs": {"regex": "\\d{1,2}"}},
    )
    assert [re.fullmatch("[0-9]{1,2}", choice.text) is not None for choice in answer.choices] == [
        True,
        True,
    ]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema.not",
            "cannot be held",
        ),
        (
            {"structured_outputs": {"json": {"properties": {"a": {"minimum": 2, "maximum": 1}}}}},
            "sampling_params.structured_outputs.json.properties.a",
            "range",
        ),
        (
            {"structured_outputs": {"regex": "a(b"}},
            "sampling_params.structured_outputs.regex",
            "position 4",
        ),
    ],
)
def test_what_cannot_be_compiled_is_a_400_that_says_where(
    stack: Stack, fields: dict[str, Any], param: str, says: str, is_stream: bool
) -> None:
    body = {"model": "smollm2", "messages": MESSAGES, "stream": is_stream, **fields}
    answer = httpx.post(f"{stack.gateway}/v1/chat/completions", json=body, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]


def test_panels_called_one_by_one_pass_the_vocabulary_on(stack: Stack) -> None:
    """On a stack of its own, whose worker has no vocabulary yet."""
    with running_stack() as fresh:
        body = {"messages": MESSAGES, "response_format": FORMAT, "temperature": 0, "max_tokens": 60}
        url = f"{fresh.render}/v1/chat/completions/render"
        request = httpx.post(url, json=body, timeout=60).json()
        generate = f"{fresh.generate}/inference/v1/generate"
        refusal = httpx.post(generate, json=request, timeout=60)
        assert refusal.status_code == 409
        assert refusal.json()["error"]["code"] == "vocabulary_needed"
        vocabulary = httpx.get(f"{fresh.derender}/vocabulary", timeout=60).content
        put = f"{fresh.generate}/inference/v1/vocabularies"
        assert httpx.put(put, content=vocabulary, timeout=60).json() == {"is_new": True}
        assert httpx.put(put, content=vocabulary, timeout=60).json() == {"is_new": False}
        generated = httpx.post(generate, json=request, timeout=60).json()
        chained = httpx.post(
            f"{fresh.derender}/v1/chat/completions/derender",
            json={
                "model": "smollm2",
                "generate_response": generated,
                "prompt_tokens": len(request["token_ids"]),
                "chat_request": body,
            },
            timeout=60,
        ).json()
        log = fresh.log.read_text()
    assert "fork" not in log  # gRPC would complain of one
    content = chained["choices"][0]["message"]["content"]
    direct = httpx.post(f"{stack.gateway}/v1/chat/completions", json=body, timeout=60).json()
    assert content == direct["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(content), SCHEMA)
