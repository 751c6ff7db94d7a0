"""Chats with the openai client, and their answers."""

from typing import Any

import openai

QUESTION = [{"role": "user", "content": "Name three colours, and say why you like them."}]
MODEL = "smollm2"


def client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)


def ask(base: str, **fields: Any) -> Any:
    """A chat completion; greedy unless ``fields`` say otherwise."""
    given = {"model": MODEL, "messages": QUESTION, "temperature": 0, **fields}
    return client(base).chat.completions.create(**given)


def joined(chunks: Any) -> tuple[str, list[tuple[str, float]], str | None]:
    """Text, logprob entries and finish reason of a stream of one choice."""
    text, entries, finish = "", [], None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            if choice.logprobs is not None:
                entries += [(each.token, each.logprob) for each in choice.logprobs.content]
    return text, entries, finish
