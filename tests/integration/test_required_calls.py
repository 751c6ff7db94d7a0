"""Required tool calls of a model that would never make one, through the `openai` client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from support.stack import Stack, running_stack
from unit.derender.channel_toys import CHANNELS, Reply, joined, reply_of

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "set_mode": {"type": "object", "properties": {"mode": {"enum": ["on", "off"]}}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
WEATHER: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def own_stack(smollm2_dir: Path) -> Iterator[Stack]:
    """One with Hermes' format, which SmolLM2 never saw."""
    assert smollm2_dir.is_dir()
    with running_stack("--response-template=hermes") as started:
        yield started


@pytest.fixture(scope="module")
def client(own_stack: Stack) -> Iterator[openai.OpenAI]:
    url = f"{own_stack.gateway}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """A hot request: what the model writes by itself is nonsense."""
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Write a poem about the sea."}],
        "tools": TOOLS,
        "tool_choice": "required",
        "temperature": 1.5,
        "seed": 3,
        "max_tokens": 100,
        "logprobs": True,
        "top_logprobs": 2,
        **fields,
    }
    return client.chat.completions.create(**asked)


def replies(answer: Any) -> list[Reply]:
    body = json.loads(answer.model_dump_json(exclude_unset=True))
    return [reply_of(choice) for choice in body["choices"]]


def check_calls(reply: Reply) -> None:
    assert reply.calls
    assert reply.content == ""
    for name, arguments in reply.named_calls():
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("choice", ["required", WEATHER])
def test_one_valid_call_and_nothing_else(client: openai.OpenAI, choice: Any) -> None:
    for reply in replies(ask(client, tool_choice=choice, parallel_tool_calls=False, n=4)):
        check_calls(reply)
        ((name, _),) = reply.named_calls()
        assert name == "get_weather" or choice == "required"
        assert reply.finish == [("tool_calls", None)]


def test_several_calls_where_they_are_allowed(client: openai.OpenAI) -> None:
    """Of the last one the length may leave a part."""
    many = [reply for reply in replies(ask(client, n=4)) if len(reply.calls) > 1]
    assert many
    for reply in many:
        for call in reply.calls[:-1]:
            jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])


def test_the_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    fields: Any = {"tool_choice": WEATHER, "parallel_tool_calls": False, "seed": 5}
    (whole,) = replies(ask(client, **fields))
    stream = ask(client, stream=True, **fields)
    streamed = joined(json.loads(chunk.model_dump_json(exclude_unset=True)) for chunk in stream)
    check_calls(streamed)
    assert streamed.named_calls() == whole.named_calls()
    assert streamed.finish == whole.finish
    for name in CHANNELS:
        assert streamed.logprobs.get(name, []) == whole.logprobs[name]


def test_forced_tokens_keep_their_own_logprobs(client: openai.OpenAI, own_stack: Stack) -> None:
    """Those of the same ids when they are scored as a prompt, without any grammar."""
    fields: Any = {"parallel_tool_calls": False, "extra_body": {"return_token_ids": True}}
    answer = ask(client, **fields)
    body = json.loads(answer.model_dump_json())
    ids, (choice,) = body["prompt_token_ids"], body["choices"]
    lists = choice["logprobs"]
    by_channel = [entry for name in CHANNELS for entry in lists[name]]
    scored = httpx.post(
        f"{own_stack.generate}/inference/v1/generate",
        json={
            "token_ids": ids + choice["token_ids"],
            "sampling_params": {"max_tokens": 0, "prompt_logprobs": 0},
        },
        timeout=60,
    ).json()
    values = [
        position[str(token_id)]["logprob"]
        for token_id, position in zip(
            choice["token_ids"], scored["prompt_logprobs"][len(ids) :], strict=True
        )
    ]
    forced = [entry["logprob"] for entry in by_channel]
    assert set(forced) == set(values)
    assert min(values) < -5  # the model did not want to


def test_a_schema_that_cannot_be_compiled_is_a_400_that_says_where(own_stack: Stack) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}
    tool = {"type": "function", "function": {"name": "bad", "parameters": bad}}
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [*TOOLS, tool],
        "tool_choice": "required",
    }
    answer = httpx.post(f"{own_stack.gateway}/v1/chat/completions", json=body, timeout=60)
    error = answer.json()["error"]
    place = "tools[2].function.parameters.properties.a"
    assert (answer.status_code, error["param"]) == (400, place)
    assert "range" in error["message"]
