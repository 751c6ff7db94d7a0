"""OpenAI requests to a running stack, whole and streaming, as plain JSON."""

import json
from typing import Any

import httpx

from support.stack import Stack

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def post(url: str, **fields: Any) -> Any:
    answer = httpx.post(url, json={"model": "smollm2", **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def whole(stack: Stack, path: str, **fields: Any) -> Any:
    return post(stack.gateway + path, **fields)


def streamed(stack: Stack, path: str, **fields: Any) -> list[Any]:
    """The chunks; the last one holds usage alone."""
    body = {
        "model": "smollm2",
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    with httpx.stream("POST", stack.gateway + path, json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def generate(stack: Stack, token_ids: list[int], **params: Any) -> Any:
    """generate's own answer."""
    return post(
        f"{stack.generate}/inference/v1/generate", token_ids=token_ids, sampling_params=params
    )


def text_of(choice: Any) -> str:
    """The text of a whole reply's choice of either endpoint."""
    return str(choice["text"] if "text" in choice else choice["message"]["content"])
