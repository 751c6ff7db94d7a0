"""Answers with reasoning and tool calls: a table whose tokens straddle tags, and joined replies."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import ReplySpec, chat_reply_spec
from triptych.response_template import find_family
from triptych.wire import Generated
from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import TokenTable, parse_token_table
from unit.derender.toys import MODEL, answer, byte_alphabet, cut, stateless_chunks, stream_chunks

CHANNELS = ("content", "reasoning_content", "tool_calls", "markup")
EOS = "<|im_end|>"
#: Tags, parts of tags with text beside them, and parts of characters.
WORDS = [
    "<think>",
    "</think>",
    "</think>\n\nHi",
    "m</th",
    "<tool_call>",
    "</tool_call>",
    "\n</tool_call>\n<tool",
    '{"name": "',
    '", "arguments": ',
    '": "',
    " the",
    "\n\n",
    "é世",
    "[TOOL_CALLS]",
    "<|channel|>",
    "<|message|>",
    "```",
]
#: What the outputs of the families are made of.
PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "add", "arguments": {"n": 1, "t": "é世"}}',
    '{"name": "add", "parameters": {"n": [1, {"a": null}]}}',
    '{"name": "add", "arguments": {}}',
    '{"name": "add", "arguments": {oops}}',
    '{"name": "add", "arguments": {"n": ',
    '{"arguments": {"n": 1}, "name": "add"}',
    "[TOOL_CALLS]",
    '[{"name": "add", "arguments": {"n": 1}}, {"name": "get_weather", "arguments": {}}]',
    "add[ARGS]",
    '{"n": "</think>"}',
    "[THINK]",
    "[/THINK]",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
    "<|end|>",
    "<|call|>",
    '[add(n=1, t="é")]',
    "```json\n",
    "\n```",
    "<start_function_call>call:add{n:1,t:<escape>世<escape>}<end_function_call>",
    "<start_function_call>call:",
    "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>add\n```json\n",
    "```<\uff5ctool▁call▁end\uff5c>",
    "<|python_tag|>",
    "; ",
    "text",
    " ",
    "\n\n",
    "😀",
    "<",
    "<th",
    "</tool",
]
_PARTS = [b"\xe4\xb8", b"\x96<think>", b"\x96</think>\xe4", b"\xf0\x9f", b"</think>\xf0"]


def _table() -> TokenTable:
    """Ids 0 to 255 are the bytes."""
    letters = byte_alphabet()
    raws = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + _PARTS
    vocab = {"".join(letters[byte] for byte in raw): index for index, raw in enumerate(raws)}
    added = [
        {"id": len(raws) + i, "content": c, "special": True} for i, c in enumerate(["<|s|>", EOS])
    ]
    tokenizer = {
        "added_tokens": added,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return parse_token_table(json.dumps(tokenizer).encode())


TABLE = _table()
EOS_ID = TABLE.num_tokens - 1
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    for name in ("get_weather", "add")
]


def derenderer_of(family: str, table: TokenTable = TABLE, **options: Any) -> Derenderer:
    return Derenderer(
        table,
        model=MODEL,
        family=find_family(family, Path()),
        clock=lambda: 1_700_000_000.0,
        **options,
    )


_BY_FIRST_BYTE: dict[int, list[int]] = {}
for _id, _raw in sorted(enumerate(TABLE.bytes_of), key=lambda pair: -len(pair[1])):
    _BY_FIRST_BYTE.setdefault(_raw[0], []).append(_id)


def tokens(text: str | bytes, *, is_long: bool = True) -> list[int]:
    """Ids of ``text``: the longest token first, or single bytes."""
    data = text.encode() if isinstance(text, str) else text
    if not is_long:
        return list(data)
    ids: list[int] = []
    while data:
        fitting = (
            each for each in _BY_FIRST_BYTE[data[0]] if data.startswith(TABLE.bytes_of[each])
        )
        ids.append(next(fitting))
        data = data[len(TABLE.bytes_of[ids[-1]]) :]
    return ids


def spec_of(**fields: Any) -> ReplySpec:
    """The spec of a chat request with tools and logprobs."""
    asked = {"logprobs": True, "top_logprobs": 1, "tools": TOOLS, "return_token_ids": True}
    return chat_reply_spec({**asked, **fields}, model=MODEL)


def scores(ids: Sequence[int]) -> Logprobs:
    """Two candidates a position, with values that tell the positions apart."""
    return pack_logprobs(
        [(each, -0.25 * n, 1), (each // 2, -50.0, 9)] for n, each in enumerate(ids)
    )


def answered(
    ids: list[int], finish_reason: Any = "length", prompt: list[int] | None = None
) -> Generated:
    return answer(ids, finish_reason, prompt=prompt, logprobs=scores(ids))


@dataclass
class Reply:
    """One choice, whole or joined from chunks."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    finish: list[Any] = field(default_factory=list)

    def raw(self, channel: str) -> bytes:
        """The joined bytes of a channel's entries."""
        return bytes(byte for entry in self.logprobs.get(channel, []) for byte in entry["bytes"])

    def named_calls(self) -> list[tuple[str, Any]]:
        return [(call["name"], json.loads(call["arguments"])) for call in self.calls]


def whole(derenderer: Derenderer, spec: ReplySpec, given: Generated) -> Reply:
    body = json.loads(derenderer.whole(spec, [given], request_id="r", created=1))
    (choice,) = body["choices"]
    return reply_of(choice)


def reply_of(choice: Any) -> Reply:
    """A whole answer's choice."""
    message = choice["message"]
    return Reply(
        content=message["content"] or "",
        reasoning=message.get("reasoning_content") or "",
        calls=[{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])],
        logprobs=choice["logprobs"] or {},
        token_ids=choice.get("token_ids") or [],
        finish=[(choice["finish_reason"], choice["stop_reason"])],
    )


def joined(chunks: Iterable[Any]) -> Reply:
    """Stream chunks of one choice put together as a client does it."""
    reply = Reply()
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reply.content += delta["content"] or ""
            reply.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(reply.calls):
                    reply.calls.append(
                        {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                    )
                reply.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            for name, entries in (choice["logprobs"] or {}).items():
                reply.logprobs.setdefault(name, []).extend(entries)
            reply.token_ids += choice.get("token_ids") or []
            if choice["finish_reason"]:
                reply.finish.append((choice["finish_reason"], choice["stop_reason"]))
    return reply


def streamed(
    derenderer: Derenderer, spec: ReplySpec, given: Generated, cuts: Iterable[int]
) -> Reply:
    prompt = given.prompt_token_ids or []
    return joined(stream_chunks(derenderer, spec, cut(given, cuts), prompt))


def stateless(
    derenderer: Derenderer, spec: ReplySpec, given: Generated, cuts: Iterable[int]
) -> tuple[Reply, list[str]]:
    chunks, states = stateless_chunks(
        derenderer, spec, cut(given, cuts), given.prompt_token_ids or []
    )
    return joined(chunks), states
