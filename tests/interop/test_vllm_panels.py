"""vLLM's render and derender with our generate, and ours with its generate, in JSON by hand."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.stack import Stack

CHAT: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Say hi in French, with an emoji 🙂."}],
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 3,
}
COMPLETION: dict[str, Any] = {
    "model": "smollm2",
    "prompt": ["The capital of France is", "Hello"],
    "temperature": 0,
    "max_tokens": 5,
    "logprobs": 2,
    "echo": True,
}


def post(url: str, body: Any) -> Any:
    answer = httpx.post(url, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(url: str, body: Any) -> Iterator[Any]:
    with httpx.stream("POST", url, json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


@pytest.fixture(params=["vllm's panels", "vllm's engine"])
def bases(request: pytest.FixtureRequest, vllm: str, stack: Stack) -> tuple[str, str, str]:
    """The addresses of render, generate and derender."""
    if request.param == "vllm's panels":
        return vllm, stack.generate, vllm
    return stack.render, vllm, stack.derender


def chat_answer(bases: tuple[str, str, str], asked: dict[str, Any]) -> Any:
    render, generate, derender = bases
    request = post(f"{render}/v1/chat/completions/render", asked)
    body = {
        "model": "smollm2",
        "generate_response": post(f"{generate}/inference/v1/generate", request),
        "prompt_tokens": len(request["token_ids"]),
        "prompt_token_ids": request["token_ids"],
        "chat_request": asked,
    }
    return post(f"{derender}/v1/chat/completions/derender", body)


def agree(answer: Any, expected: Any) -> None:
    """The two texts, finishes, usages, and logprobs up to what engines differ in."""
    assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
    assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    for choice, other in zip(answer["choices"], expected["choices"], strict=True):
        assert choice["finish_reason"] == other["finish_reason"]
        assert choice.get("text") == other.get("text")
        assert choice.get("message", {}).get("content") == other.get("message", {}).get("content")


def chosen(answer: Any) -> list[float]:
    """The logprobs of a chat's sampled tokens."""
    return [each["logprob"] for each in answer["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize("extra", [{}, {"logprobs": False, "top_logprobs": None}])
def test_mixed_chat_chain_is_the_coupled_answer(
    bases: tuple[str, str, str], vllm: str, stack: Stack, extra: dict[str, Any]
) -> None:
    asked = {**CHAT, **extra}
    answer = chat_answer(bases, asked)
    for base in (vllm, stack.gateway):
        coupled = post(f"{base}/v1/chat/completions", asked)
        agree(answer, coupled)
        if asked["logprobs"]:
            assert chosen(answer) == pytest.approx(chosen(coupled), abs=1e-3)


def test_mixed_chain_ends_at_eos(bases: tuple[str, str, str], stack: Stack) -> None:
    asked = {**CHAT, "max_tokens": 60, "messages": [{"role": "user", "content": "Say hi."}]}
    asked["logit_bias"] = {"2": 12}  # the model's EOS
    answer = chat_answer(bases, asked)
    assert answer["choices"][0]["finish_reason"] == "stop"
    agree(answer, post(f"{stack.gateway}/v1/chat/completions", asked))


def test_mixed_completion_chain_is_the_coupled_answer(
    bases: tuple[str, str, str], vllm: str
) -> None:
    render, generate, derender = bases
    requests = post(f"{render}/v1/completions/render", COMPLETION)
    answers = [post(f"{generate}/inference/v1/generate", each) for each in requests]
    body = {
        "model": "smollm2",
        "generate_responses": answers,
        "prompt_tokens": [len(each["token_ids"]) for each in requests],
        "prompt_token_ids": [each["token_ids"] for each in requests],
        "completion_request": COMPLETION,
    }
    answer = post(f"{derender}/v1/completions/derender", body)
    coupled = post(f"{vllm}/v1/completions", COMPLETION)
    if render == vllm:  # its derender leaves the echoed prompt to its coupled endpoint
        for choice in coupled["choices"]:
            choice["text"] = choice["text"].removeprefix(COMPLETION["prompt"][choice["index"]])
    agree(answer, coupled)


def test_streamed_chain_gives_the_text_chunk_by_chunk(
    bases: tuple[str, str, str], stack: Stack
) -> None:
    render, generate, derender = bases
    asked = {**CHAT, "stream": True}
    request = post(f"{render}/v1/chat/completions/render", asked)
    state, text = None, ""
    entries: list[Any] = []
    for event in events(f"{generate}/inference/v1/generate", {**request, "stream": True}):
        body = {
            "stream": True,
            "model": "smollm2",
            "generate_chunk": event,
            "stream_state": state,
            "prompt_token_ids": request["token_ids"],
            "chat_request": asked,
        }
        answer = post(f"{derender}/v1/chat/completions/derender", body)
        state = answer["stream_state"]
        for choice in answer["chunk"]["choices"]:
            text += choice["delta"].get("content") or ""
            entries += (choice.get("logprobs") or {}).get("content") or []
    whole = post(f"{stack.gateway}/v1/chat/completions", {**asked, "stream": False})["choices"][0]
    assert text == whole["message"]["content"]
    assert [each["logprob"] for each in entries] == pytest.approx(
        [each["logprob"] for each in whole["logprobs"]["content"]], abs=1e-3
    )
