"""Our gateway, render and derender in front of vLLM's engine, asked by the openai client."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from interop.chats import MODEL, QUESTION, ask, ask_stream, client, complete, joined
from support.stack import Stack, running_gateway, running_stack


def test_gateway_is_ready_and_serves_vllms_model(gateway_to_vllm: str) -> None:
    assert httpx.get(f"{gateway_to_vllm}/ready").status_code == 200
    with client(gateway_to_vllm) as asking:
        (model,) = asking.models.list().data
    assert model.id == MODEL


def test_greedy_chat_is_that_of_our_own_engine(gateway_to_vllm: str, stack: Stack) -> None:
    """Both compute in float32: the same tokens, and logprobs up to the order of sums."""
    fields: dict[str, Any] = {"max_tokens": 24, "logprobs": True, "top_logprobs": 5}
    theirs, ours = (ask(base, **fields) for base in (gateway_to_vllm, stack.gateway))
    assert theirs.choices[0].message.content == ours.choices[0].message.content
    assert theirs.choices[0].finish_reason == ours.choices[0].finish_reason
    assert theirs.usage == ours.usage
    pairs = zip(theirs.choices[0].logprobs.content, ours.choices[0].logprobs.content, strict=True)
    for entry, other in pairs:
        assert (entry.token, entry.bytes) == (other.token, other.bytes)
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert len(entry.top_logprobs) == 5
        assert entry.top_logprobs[0].token == entry.token


def test_joined_bytes_of_entries_are_the_answer(gateway_to_vllm: str) -> None:
    answer = ask(gateway_to_vllm, max_tokens=16, temperature=1.2, seed=4, logprobs=True)
    (choice,) = answer.choices
    joined_bytes = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert joined_bytes.decode() == choice.message.content


def test_stream_equals_the_whole_answer(gateway_to_vllm: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, "logprobs": True, "top_logprobs": 2}
    whole = ask(gateway_to_vllm, **fields).choices[0]
    text, entries, finish = joined(ask_stream(gateway_to_vllm, **fields))
    assert (text, finish) == (whole.message.content, whole.finish_reason)
    assert [token for token, _ in entries] == [each.token for each in whole.logprobs.content]


@pytest.mark.parametrize("is_stream", [False, True])
def test_stop_string_is_matched_by_derender(gateway_to_vllm: str, is_stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 40, "stop": ["versatile"]}
    if is_stream:
        text, _, finish = joined(ask_stream(gateway_to_vllm, **fields))
    else:
        (choice,) = ask(gateway_to_vllm, **fields).choices
        text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == ("1. Red: Red is a ", "stop")


def test_seeded_choices_repeat(gateway_to_vllm: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0.9, "seed": 3, "n": 2}
    first, second = (ask(gateway_to_vllm, **fields) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]


def test_echo_scores_a_prompt(gateway_to_vllm: str, stack: Stack) -> None:
    """What evaluations ask for: the prompt's logprobs, and nothing generated."""
    fields: dict[str, Any] = {"prompt": "The capital of France is Paris.", "max_tokens": 0}
    fields |= {"echo": True, "logprobs": 1}
    theirs, ours = (complete(base, **fields) for base in (gateway_to_vllm, stack.gateway))
    assert theirs.choices[0].text == ours.choices[0].text
    mine, yours = theirs.choices[0].logprobs, ours.choices[0].logprobs
    assert (mine.tokens, mine.text_offset) == (yours.tokens, yours.text_offset)
    assert mine.token_logprobs[0] is yours.token_logprobs[0] is None
    assert mine.token_logprobs[1:] == pytest.approx(yours.token_logprobs[1:], abs=1e-3)


def test_structured_output_needs_vllms_tokenizer(gateway_to_vllm: str, vllm_generate: str) -> None:
    body = {"model": MODEL, "messages": QUESTION, "structured_outputs": {"choice": ["yes", "no"]}}
    answer = httpx.post(f"{gateway_to_vllm}/v1/chat/completions", json=body, timeout=120)
    if has_tokenizer(vllm_generate):
        assert answer.json()["choices"][0]["message"]["content"] in {"yes", "no"}
    else:
        assert answer.status_code == 400


def test_required_call_is_held_by_vllm(vllm_generate: str, smollm2_dir: Path) -> None:
    """By the structural tag of our render, in a format that the model never saw."""
    assert smollm2_dir.is_dir()
    city = {"type": "string", "maxLength": 12}
    schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": "get_weather", "parameters": schema}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}
    with (
        running_stack("--response-template=hermes") as hermes,
        running_gateway(hermes, generate=vllm_generate) as base,
    ):
        if not has_tokenizer(vllm_generate):
            with pytest.raises(openai.BadRequestError):
                ask(base, **fields)
            return
        (choice,) = ask(base, **fields).choices
    (call, *_) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    assert choice.finish_reason == "tool_calls"


def has_tokenizer(vllm: str) -> bool:
    body = {"model": MODEL, "messages": QUESTION}
    answer = httpx.post(f"{vllm}/v1/chat/completions/render", json=body, timeout=60)
    return answer.status_code == 200


def test_vllms_refusal_reaches_the_client(gateway_to_vllm: str) -> None:
    """The prompt fits the model that render knows, but not vLLM's --max-model-len."""
    with pytest.raises(openai.BadRequestError, match="maximum model length of 2048"):
        complete(gateway_to_vllm, prompt=[30] * 3000, max_tokens=4)


def test_greedy_choices_are_vllms_limit(gateway_to_vllm: str) -> None:
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        ask(gateway_to_vllm, n=2, max_tokens=2)


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_that_leaves_ends_the_request_in_vllm(
    gateway_to_vllm: str, vllm_generate: str, is_stream: bool
) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1500, "stream": is_stream}
    body |= {"temperature": 0, "ignore_eos": True}
    url = f"{gateway_to_vllm}/v1/chat/completions"
    if is_stream:
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=httpx.Timeout(60, read=2))
    deadline = time.monotonic() + 20
    while num_running(vllm_generate):
        assert time.monotonic() < deadline, "the request goes on without its client"
        time.sleep(0.1)


def num_running(vllm: str) -> int:
    lines = httpx.get(f"{vllm}/metrics").text.splitlines()
    (line,) = [each for each in lines if each.startswith("vllm:num_requests_running{")]
    return int(float(line.split()[-1]))
