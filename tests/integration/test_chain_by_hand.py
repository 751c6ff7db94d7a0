"""render, generate and derender called one by one give the gateway's answer."""

from typing import Any

import httpx
import msgspec
import pytest

from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

CHAT = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Say hi in French, with an emoji 🙂."}],
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 5,
}
COMPLETION = {
    "model": "smollm2",
    "prompt": ["The capital of France is", "Hello"],
    "seed": 3,
    "n": 2,
    "max_tokens": 5,
    "logprobs": 2,
    "stop": ["\n"],
    "echo": True,
}


def post(url: str, body: Any) -> Any:
    answer = httpx.post(url, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in {"id", "created"}}


def test_chat_chain_equals_the_gateway(stack: Stack) -> None:
    request = post(f"{stack.render}/v1/chat/completions/render", CHAT)
    generated = post(f"{stack.generate}/inference/v1/generate", request)
    body = {
        "model": "smollm2",
        "generate_response": generated,
        "prompt_tokens": len(request["token_ids"]),
        "chat_request": CHAT,
    }
    chained = post(f"{stack.derender}/v1/chat/completions/derender", body)
    direct = post(f"{stack.gateway}/v1/chat/completions", CHAT)
    assert comparable(chained) == comparable(direct)


def test_completion_chain_equals_the_gateway(stack: Stack) -> None:
    requests = post(f"{stack.render}/v1/completions/render", COMPLETION)
    generated = [post(f"{stack.generate}/inference/v1/generate", each) for each in requests]
    body = {
        "model": "smollm2",
        "generate_responses": generated,
        "prompt_tokens": [len(each["token_ids"]) for each in requests],
        "prompt_token_ids": [each["token_ids"] for each in requests],
        "completion_request": COMPLETION,
    }
    chained = post(f"{stack.derender}/v1/completions/derender", body)
    direct = post(f"{stack.gateway}/v1/completions", COMPLETION)
    assert comparable(chained) == comparable(direct)


def test_streamed_chat_chain_equals_the_gateway(stack: Stack) -> None:
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    request = post(f"{stack.render}/v1/chat/completions/render", asked)
    state: str | None = None
    content, entries, usage = "", [], None
    for event in events(f"{stack.generate}/inference/v1/generate", request):
        body = {
            "stream": True,
            "generate_chunk": event,
            "stream_state": state,
            "prompt_tokens": len(request["token_ids"]),
            "chat_request": asked,
        }
        answer = post(f"{stack.derender}/v1/chat/completions/derender", body)
        chunk, state = answer["chunk"], answer["stream_state"]
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            entries += (choice["logprobs"] or {"content": []})["content"]
    direct = post(f"{stack.gateway}/v1/chat/completions", CHAT)
    assert content == direct["choices"][0]["message"]["content"]
    assert entries == direct["choices"][0]["logprobs"]["content"]
    assert usage == direct["usage"]


def events(url: str, body: Any) -> list[Any]:
    """The data events of a streamed answer, without [DONE]."""
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [msgspec.json.decode(line) for line in lines[:-1]]
