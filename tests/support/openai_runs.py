"""Random OpenAI requests, and all that a client sees of their answers, in a form to compare."""

import json
import random
from dataclasses import dataclass
from typing import Any

import httpx

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CALL = r'<tool_call>\{"name": "look", "arguments": \{"place": "[a-z]{4,12}"\}\}</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; its id makes the reply's, so that replies can be equal."""

    path: str
    body: dict[str, Any]
    request_id: str


def random_request(number: int, *, max_tokens: int) -> Asked:
    """Of every kind: streaming or not, one choice or two, greedy or not, calls, scored prompts."""
    draw = random.Random(number)
    words = draw.choices(["apple", "river", "seven", "north", "quiet", "stone", "light"], k=9)
    body: dict[str, Any] = {
        "n": draw.choice([1, 2]),
        "seed": draw.randrange(2**31),
        "temperature": draw.choice([0, 0.7, 1.0]),
        "max_tokens": draw.randrange(max_tokens // 2, max_tokens),
        "stream": number % 2 == 0,
        "frequency_penalty": draw.choice([0, 0.5]),
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    is_call = number % 8 in {2, 3}
    if is_call:
        body |= {"tools": TOOLS, "structured_outputs": {"regex": CALL}, "max_tokens": 200}
    if is_call or number % 3:
        path = CHAT
        body |= {"messages": [{"role": "user", "content": f"{number} {' '.join(words)}"}]}
        body |= {"logprobs": True, "top_logprobs": 5}
    else:
        path = COMPLETIONS
        body |= {"prompt": [f"{number} {words[0]}", f"{words[1]} {number}"], "logprobs": 5}
        body |= {"echo": draw.random() < 0.5}
    return Asked(path, body, f"run-{number}")


def with_stop(asked: Asked, answer: Any) -> Asked:
    """``asked`` with a stop string out of the middle of its first answer."""
    text = next(iter(answer["choices"].values()))["text"]
    middle = len(text) // 2
    return Asked(asked.path, {**asked.body, "stop": [text[middle : middle + 4]]}, asked.request_id)


def ask(client: httpx.Client, gateway: str, asked: Asked) -> Any:
    """What a client sees: each choice's text, calls, logprobs and end, in order; and usage.

    ``created`` is left out, and ``cached_tokens``: those are the worker's.
    """
    headers = {"x-request-id": asked.request_id}
    answer = client.post(gateway + asked.path, json=asked.body, headers=headers)
    assert answer.status_code == 200, (asked, answer.text)
    if not asked.body["stream"]:
        return _seen([answer.json()])
    return seen_of_stream(answer.text)


def seen_of_stream(text: str) -> Any:
    """The same of a stream's text, however its tokens were put into chunks."""
    events = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(event.startswith("data: ") for event in events), events[-1]
    assert events[-1] == "data: [DONE]", events[-1]
    return _seen([json.loads(event.removeprefix("data: ")) for event in events[:-1]])


def _seen(chunks: list[Any]) -> Any:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            known = choices.setdefault(choice["index"], {"text": "", "ends": [], "scores": {}})
            _add(known, choice)
    counts = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")} if usage else None
    return {"id": chunks[0]["id"], "choices": choices, "usage": counts}


def _add(known: dict[str, Any], choice: Any) -> None:
    message = choice.get("delta") or choice.get("message") or {}
    known["text"] += choice.get("text") or message.get("content") or ""
    for call in message.get("tool_calls") or []:
        function = call["function"]
        name = f"call {call.get('index', 0)}"
        known[name] = known.get(name, "") + (function.get("arguments") or "")
        known.setdefault("names", []).extend([function["name"]] if function.get("name") else [])
    for field, entries in (choice.get("logprobs") or {}).items():
        if isinstance(entries, list):
            known["scores"].setdefault(field, []).extend(entries)
    if choice.get("prompt_logprobs") is not None:
        known.setdefault("prompt_logprobs", []).append(choice["prompt_logprobs"])
    if choice["finish_reason"] is not None:
        known["ends"].append((choice["finish_reason"], choice.get("stop_reason")))
