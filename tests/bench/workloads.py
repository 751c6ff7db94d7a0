"""What is measured: bodies for the endpoints that triptych and vLLM share."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer

WORDS = "a server takes many requests at once and sends each caller back the tokens it asked for"
CHAT_RENDER = "/v1/chat/completions/render"
CHAT_DERENDER = "/v1/chat/completions/derender"
GENERATE = "/inference/v1/generate"


def prompt_ids(length: int, seed: int, vocab_size: int = 49152) -> list[int]:
    return random.Random(seed).choices(range(100, vocab_size), k=length)


def generate_body(length: int, max_tokens: int, seed: int, logprobs: int | None = None) -> bytes:
    params = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    if logprobs is not None:
        params["logprobs"] = logprobs
    return json.dumps({"token_ids": prompt_ids(length, seed), "sampling_params": params}).encode()


def chat_body(num_words: int, seed: int) -> bytes:
    text = " ".join(random.Random(seed).choices(WORDS.split(), k=num_words))
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 8}).encode()


def derender_body(num_tokens: int, top_logprobs: int | None) -> bytes:
    """A whole answer of ``num_tokens`` with ``top_logprobs`` candidates, and its chat request."""
    rng = random.Random(7)
    ids = [rng.randrange(100, 49000) for _ in range(num_tokens)]
    entries = [_entry(token_id, top_logprobs or 0, rng) for token_id in ids]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": ids,
        "logprobs": None if top_logprobs is None else {"content": entries},
    }
    request: dict[str, object] = {"messages": [{"role": "user", "content": "x"}]}
    if top_logprobs is not None:
        request |= {"logprobs": True, "top_logprobs": top_logprobs}
    response = {"request_id": "bench", "model": None, "created": 1, "choices": [choice]}
    body = {"generate_response": response, "prompt_tokens": 5, "chat_request": request}
    return json.dumps(body).encode()


def _entry(token_id: int, k: int, rng: random.Random) -> dict[str, object]:
    ids = [token_id, *rng.sample(range(100, 49000), max(0, k - 1))]
    values = sorted((-rng.random() * 12 for _ in ids), reverse=True)
    top = [
        {"token_id": each, "logprob": value, "rank": rank + 1}
        for rank, (each, value) in enumerate(zip(ids, values, strict=True))
    ]
    return {**top[0], "top_logprobs": top}


def parsed_chunk_body(token_id: int, stream_state: str | None, *, is_last: bool) -> bytes:
    """The next chunk, of one token without logprobs, for a derender that parses."""
    choice = {
        "index": 0,
        "finish_reason": "length" if is_last else None,
        "token_ids": [token_id],
    }
    body = {
        "stream": True,
        "generate_chunk": {"request_id": "bench", "choices": [choice]},
        "stream_state": stream_state,
        "prompt_tokens": 5,
        "chat_request": {"messages": [{"role": "user", "content": "x"}], "stream": True},
    }
    return json.dumps(body).encode()


def reasoned_ids(tokenizer_file: Path, num_tokens: int) -> list[int]:
    """An answer of which the first half is reasoning."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    words = tokenizer.encode(" ".join([WORDS] * num_tokens)).ids
    opening, closing = (tokenizer.encode(tag).ids for tag in ("<think>", "</think>"))
    num_words = num_tokens - len(opening) - len(closing)
    half = num_words // 2
    ids: list[int] = [*opening, *words[:half], *closing, *words[half:num_words]]
    return ids


def chunk_body(index: int, num_chunks: int, stream_state: str | None) -> bytes:
    """The next chunk of a stream of one token per chunk, with top-20 candidates."""
    rng = random.Random(index)
    entry = _entry(rng.randrange(100, 49000), 20, rng)
    choice = {
        "index": 0,
        "finish_reason": "length" if index == num_chunks - 1 else None,
        "token_ids": [entry["token_id"]],
        "logprobs": {"content": [entry]},
    }
    body = {
        "stream": True,
        "generate_chunk": {"request_id": "bench", "choices": [choice]},
        "stream_state": stream_state,
        "prompt_tokens": 5,
    }
    return json.dumps(body).encode()
