"""Reasoning and tool calls through the `openai` client over real sockets; the ids are scripted."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.scripted import (
    Scripted,
    ScriptedGenerate,
    TextPanels,
    encoded,
    scripted_stack,
    text_panels,
)
from unit.derender.channel_toys import CHANNELS, Reply, joined, reply_of

pytestmark = pytest.mark.model

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks up the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("get_weather", "get_time")
]
QUESTION: Any = [{"role": "user", "content": "How is the weather in Paris and in 東京?"}]
ANSWER = (
    "<think>\nTwo cities: Paris, 東京.\n</think>\n\nI will look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京"}}\n</tool_call>'
    "<|im_end|>"
)
ASKED: dict[str, Any] = {
    "model": "scripted",
    "messages": QUESTION,
    "tools": TOOLS,
    "logprobs": True,
    "top_logprobs": 2,
}


@pytest.fixture(scope="module")
def texts(smollm2_dir: Path) -> TextPanels:
    return text_panels(smollm2_dir, "qwen3")


@pytest.fixture
async def stack(texts: TextPanels) -> AsyncIterator[Scripted]:
    generate = ScriptedGenerate(encoded(texts.model_dir, ANSWER))
    async with scripted_stack(texts, generate) as started:
        yield started


async def streamed(stack: Scripted, **fields: Any) -> tuple[Reply, list[Any]]:
    """The joined stream, and its chunks; no chunk comes without anything in it."""
    stream = await stack.client.chat.completions.create(**{**ASKED, **fields}, stream=True)
    chunks = [json.loads(chunk.model_dump_json(exclude_unset=True)) async for chunk in stream]
    return joined(chunks), chunks


def whole_reply(answer: Any) -> Reply:
    (choice,) = json.loads(answer.model_dump_json(exclude_unset=True))["choices"]
    return reply_of(choice)


async def test_chat_with_reasoning_tools_and_logprobs(stack: Scripted) -> None:
    answer = await stack.client.chat.completions.create(**ASKED)
    (choice,) = answer.choices
    message: Any = choice.message
    assert message.reasoning_content == "Two cities: Paris, 東京."
    assert message.content == "I will look."
    calls = [
        (call.type, call.function.name, call.function.arguments) for call in message.tool_calls
    ]
    assert calls == [
        ("function", "get_weather", '{"city": "Paris"}'),
        ("function", "get_weather", '{"city": "東京"}'),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert choice.finish_reason == "tool_calls"
    logprobs: Any = choice.logprobs
    assert bytes(b for e in logprobs.content for b in e.bytes).decode() == "I will look."
    lists = {name: getattr(logprobs, name) for name in CHANNELS}
    hidden = [entry for name in CHANNELS[1:] for entry in lists[name]]
    raw = [bytes(entry["bytes"]) for entry in hidden]
    assert sum(map(len, raw)) + len("I will look.") == len(ANSWER.encode())
    assert answer.usage is not None
    assert answer.usage.completion_tokens == stack.generate.num_sent


async def test_joined_stream_equals_the_whole_answer(stack: Scripted) -> None:
    whole = await stack.client.chat.completions.create(**ASKED)
    reply, chunks = await streamed(stack)
    (choice,) = json.loads(whole.model_dump_json(exclude_unset=True))["choices"]
    message = choice["message"]
    assert (reply.content, reply.reasoning) == (message["content"], message["reasoning_content"])
    made = [{"name": c["name"], "arguments": c["arguments"]} for c in reply.calls]
    assert made == [call["function"] for call in message["tool_calls"]]
    assert reply.logprobs == {name: choice["logprobs"][name] for name in CHANNELS}
    assert reply.finish[0][0] == "tool_calls"
    num_argument_chunks = sum(
        bool(choice["delta"].get("tool_calls")) for chunk in chunks for choice in chunk["choices"]
    )
    assert num_argument_chunks > 2  # more than begin the two calls: they come as they are written


async def test_hidden_reasoning_is_nowhere(stack: Scripted, smollm2_dir: Path) -> None:
    fields: Any = {"extra_body": {"include_reasoning": False, "return_token_ids": True}}
    whole = await stack.client.chat.completions.create(**ASKED, **fields)
    reply, chunks = await streamed(stack, **fields)
    (choice,) = json.loads(whole.model_dump_json(exclude_unset=True))["choices"]
    assert reply.content == choice["message"]["content"] == "I will look."
    assert len(reply.calls) == 2
    seen = json.dumps(chunks, ensure_ascii=False) + whole.model_dump_json(exclude_unset=True)
    for text in ("Two", "cities", "think>", "<tool_call>", "im_end"):
        assert text not in seen
    assert set(choice["logprobs"]) == {"content", "tool_calls"}
    hidden_ids = set(encoded_words(smollm2_dir, "Two cities"))
    assert hidden_ids.isdisjoint(choice["token_ids"])
    assert hidden_ids.isdisjoint(reply.token_ids)


def encoded_words(model_dir: Path, text: str) -> list[int]:
    """Ids of the script that stand for ``text``."""
    position = ANSWER.index(text)
    before = len(encoded(model_dir, ANSWER[:position]))
    after = len(encoded(model_dir, ANSWER[: position + len(text)]))
    return encoded(model_dir, ANSWER)[before:after]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "content", "reasoning"),
    [("will", "I ", "Two cities: Paris, 東京."), ("Paris, 東", "", "Two cities: ")],
)
async def test_a_stop_string_in_either_text_cancels_generate(
    texts: TextPanels, stop: str, content: str, reasoning: str, is_stream: bool
) -> None:
    generate = ScriptedGenerate(encoded(texts.model_dir, ANSWER), finish_reason=None)
    async with scripted_stack(texts, generate) as stack:
        if is_stream:
            reply, _ = await streamed(stack, stop=stop)
        else:
            answer = await stack.client.chat.completions.create(**ASKED, stop=stop)
            reply = whole_reply(answer)
        await asyncio.wait_for(generate.aborted.wait(), 20)
    assert (reply.content, reply.reasoning, reply.calls) == (content, reasoning, [])
    assert reply.finish == [("stop", stop)]


async def test_tool_choice_none_keeps_the_call_in_content(stack: Scripted) -> None:
    answer = await stack.client.chat.completions.create(**ASKED, tool_choice="none")
    (choice,) = answer.choices
    assert choice.message.tool_calls is None
    assert choice.message.content == ANSWER[ANSWER.index("I will") :].removesuffix("<|im_end|>")
    assert choice.finish_reason == "stop"


async def test_parallel_tool_calls_false_shows_one_call(stack: Scripted) -> None:
    reply, _ = await streamed(stack, parallel_tool_calls=False)
    assert reply.named_calls() == [("get_weather", {"city": "Paris"})]
    assert reply.content == "I will look."


@pytest.mark.parametrize(
    "choice", [{"type": "function", "function": {"name": "get_time"}}, "required"]
)
async def test_a_required_call_is_held_by_grammar_after_the_usual_prompt(
    texts: TextPanels, choice: Any
) -> None:
    script = (
        "<think>\nHm.\n</think>\n\n"
        '<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    )
    generate = ScriptedGenerate(encoded(texts.model_dir, script))
    async with scripted_stack(texts, generate) as stack:
        reply, _ = await streamed(stack, tool_choice=choice)
        await streamed(stack)
    assert reply.named_calls() == [("get_time", {"city": "Paris"})]
    assert (reply.content, reply.reasoning, reply.finish[0][0]) == ("", "Hm.", "tool_calls")
    required, free = generate.requests
    assert required.token_ids == free.token_ids
    outputs = required.sampling_params.structured_outputs
    assert outputs is not None
    assert "get_time" in str(outputs.structural_tag)
    assert free.sampling_params.structured_outputs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required", "tools": openai.NOT_GIVEN}, "tool_choice"),
        ({"extra_body": {"include_reasoning": "no"}}, "include_reasoning"),
    ],
)
async def test_a_choice_that_cannot_be_served_is_refused(
    stack: Scripted, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await stack.client.chat.completions.create(**{**ASKED, **fields})
    assert caught.value.param == param


async def test_the_stateless_stream_by_hand_equals_the_whole_answer(
    stack: Scripted, smollm2_dir: Path
) -> None:
    """Every token in a request of its own, without the prompt."""
    request = {"messages": QUESTION, "tools": TOOLS}
    url, state, chunks = f"{stack.derender}/v1/chat/completions/derender", None, []
    ids = encoded(smollm2_dir, ANSWER)
    async with httpx.AsyncClient() as client:
        for position, token_id in enumerate(ids):
            is_last = position == len(ids) - 1
            choice = {
                "index": 0,
                "token_ids": [token_id],
                "finish_reason": "stop" if is_last else None,
            }
            body = {
                "stream": True,
                "generate_chunk": {"request_id": "r", "choices": [choice]},
                "stream_state": state,
                "chat_request": request,
            }
            answer = (await client.post(url, json=body)).json()
            chunks.append(answer["chunk"])
            state = answer["stream_state"]
            assert len(state) < 1024
    reply = joined(chunks)
    assert reply.reasoning == "Two cities: Paris, 東京."
    assert reply.content == "I will look."
    assert [arguments["city"] for _, arguments in reply.named_calls()] == ["Paris", "東京"]
    assert reply.finish == [("tool_calls", None)]
