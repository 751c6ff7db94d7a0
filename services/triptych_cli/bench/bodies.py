"""What is asked: bodies of the three endpoints, with random prompts or those of a file."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.errors import SetupError
from triptych_cli.bench.settings import BenchSettings, Endpoint

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/inference/v1/generate",
}
#: A token each in most tokenizers, with the space before it.
_WORDS = [
    *("time", "people", "way", "water", "day", "part", "work", "place", "number", "side", "point"),
    *("home", "hand", "school", "house", "world", "city", "line", "group", "book", "food", "door"),
    *("light", "night", "room", "story", "money", "paper", "music", "river", "land", "name"),
]
#: In every vocabulary of the usual sizes, and no special token.
_IDS = range(256, 1024)
_PROMPT_FIELD: dict[Endpoint, str] = {
    "chat": "messages",
    "completions": "prompt",
    "generate": "token_ids",
}


def bodies(settings: BenchSettings, model: str, *, stream: int, count: int) -> Iterator[bytes]:
    """``count`` bodies; another ``stream`` has other random prompts, the same one the same ones.

    Raises:
        SetupError: the file of prompts cannot be read.
    """
    base = _base(settings, model)
    name = _PROMPT_FIELD[settings.endpoint]
    if settings.prompts is not None:
        given = itertools.cycle(read_prompts(settings.prompts, settings.endpoint))
        prompts: Iterator[dict[str, Any]] = itertools.islice(given, count)
    else:
        rngs = (random.Random(f"{settings.seed} {stream} {index}") for index in range(count))
        prompts = ({name: _random_prompt(settings, rng)} for rng in rngs)
    for prompt in prompts:
        yield json.dumps(base | prompt).encode()


def read_prompts(path: Path, endpoint: Endpoint) -> list[dict[str, Any]]:
    """The fields that each line adds to a request: a text, ids, or an object of fields.

    Raises:
        SetupError: it cannot be read, or a line is none of these; it is named.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # JSON may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"--prompts: {path}: {error}") from error
    prompts = [
        _prompt(line, endpoint, f"--prompts: line {number} of {path}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise SetupError(f"--prompts: {path} holds no prompts")
    return prompts


def _prompt(line: str, endpoint: Endpoint, place: str) -> dict[str, Any]:
    try:
        return _fields(json.loads(line), endpoint)
    except ValueError:
        wanted = f"a text or an object with {_PROMPT_FIELD[endpoint]}"
        raise SetupError(f"{place} is not {wanted}") from None


def _fields(given: Any, endpoint: Endpoint) -> dict[str, Any]:
    name = _PROMPT_FIELD[endpoint]
    if isinstance(given, str) and endpoint != "generate":
        return {name: _messages(given) if endpoint == "chat" else given}
    if isinstance(given, list) and endpoint != "chat":
        return {name: given}
    if isinstance(given, dict) and endpoint == "chat" and isinstance(given.get("prompt"), str):
        return {name: _messages(given["prompt"])} | {k: given[k] for k in given if k != "prompt"}
    if isinstance(given, dict) and name in given:
        return given
    raise ValueError


def _base(settings: BenchSettings, model: str) -> dict[str, Any]:
    """What all requests have in common."""
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": settings.output_tokens}
    if settings.ignore_eos:
        sampling["ignore_eos"] = True
    if settings.logprobs is not None:
        is_chat = settings.endpoint == "chat"
        sampling["logprobs"] = True if is_chat else settings.logprobs
        sampling |= {"top_logprobs": settings.logprobs} if is_chat else {}
    if settings.endpoint == "generate":
        sampling = {"sampling_params": sampling}
    named = {"model": model} if model else {}
    return {**named, **sampling, "stream": True, "stream_options": {"include_usage": True}}


def _random_prompt(settings: BenchSettings, rng: random.Random) -> Any:
    if settings.endpoint == "generate":
        return rng.choices(_IDS, k=settings.prompt_tokens)
    text = " ".join(rng.choices(_WORDS, k=settings.prompt_tokens))
    return _messages(text) if settings.endpoint == "chat" else text


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
