"""Chats with the openai client, and their answers."""

from collections.abc import Generator, Iterable
from typing import Any

import openai

QUESTION = [{"role": "user", "content": "Name three colours, and say why you like them."}]
MODEL = "smollm2"


def client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)


def ask(base: str, **fields: Any) -> Any:
    """A chat completion; greedy unless ``fields`` say otherwise."""
    with client(base) as asking:
        return asking.chat.completions.create(**_request(fields))


def ask_stream(base: str, **fields: Any) -> Generator[Any, None, None]:
    """The chunks of the same; closing it leaves the server."""
    with (
        client(base) as asking,
        asking.chat.completions.create(stream=True, **_request(fields)) as chunks,
    ):
        yield from chunks


def complete(base: str, **fields: Any) -> Any:
    """A completion."""
    with client(base) as asking:
        return asking.completions.create(model=MODEL, **fields)


def joined(chunks: Iterable[Any]) -> tuple[str, list[tuple[str, float]], str | None]:
    """Text, logprob entries and finish reason of a stream of one choice."""
    text, entries, finish = "", [], None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            if choice.logprobs is not None:
                entries += [(each.token, each.logprob) for each in choice.logprobs.content]
    return text, entries, finish


def _request(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, "temperature": 0, **fields}
