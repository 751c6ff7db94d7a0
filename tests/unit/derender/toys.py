"""Small token tables of each kind, answers made by hand, and joined streams."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import ReplySpec
from triptych.wire import ChoiceDelta, FinishReason, Generated, GenerateDelta
from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import TokenTable, parse_token_table

MODEL = "toy"
_BYTE_FALLBACK = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
_WORDS = [" a", "ab", "b", "abc", " the", "é", "世", "😀", "<", "<end", ">", "\n", "�"]


def byte_alphabet() -> list[str]:
    """GPT-2's letter of each byte, from its published construction."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


def byte_level_table() -> TokenTable:
    """Ids 0 to 255 are the bytes; then words, tokens that end or begin inside characters, EOS."""
    letters = byte_alphabet()
    raws = [bytes([byte]) for byte in range(256)]
    raws += [word.encode() for word in _WORDS if len(word.encode()) > 1]
    raws += [
        b"\xe4\xb8",
        b"\x96\xe7",
        b"\x95\x8c",
        b"\xe2\x80",
        b"\x99s",
        b" \xf0\x9f",
        b"\xed\xa0",
    ]
    vocab = {"".join(letters[byte] for byte in raw): index for index, raw in enumerate(raws)}
    return _table({"type": "BPE", "vocab": vocab, "merges": []}, {"type": "ByteLevel"}, len(raws))


def byte_fallback_table() -> TokenTable:
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [word.replace(" ", "▁") for word in _WORDS]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return _table({"type": "BPE", "vocab": vocab, "merges": []}, _BYTE_FALLBACK, len(pieces))


def unigram_table() -> TokenTable:
    vocab = [[word.replace(" ", "▁"), -1.0] for word in _WORDS]
    return _table({"type": "Unigram", "unk_id": 0, "vocab": vocab}, _METASPACE, len(vocab))


def eos_id(table: TokenTable) -> int:
    return table.num_tokens - 1


def toy_derenderer(table: TokenTable, **options: Any) -> Derenderer:
    return Derenderer(table, model=MODEL, clock=lambda: 1_700_000_000.0, **options)


def score(token_ids: Sequence[int], k: int = 2) -> Logprobs:
    """Candidates that depend on the position alone: the sampled id, then ``k`` neighbours."""
    return pack_logprobs(
        [
            (token_id, -0.125 * (position + 1), 1),
            *(((token_id + 7 * j) % 250, -1.5 - j - position / 3, j + 1) for j in range(1, k + 1)),
        ]
        for position, token_id in enumerate(token_ids)
    )


def delta(
    token_ids: list[int],
    finish_reason: FinishReason | None = None,
    *,
    index: int = 0,
    stop_reason: int | str | None = None,
    logprobs: Logprobs | None = None,
    prompt_logprobs: Logprobs | None = None,
) -> GenerateDelta:
    choice = ChoiceDelta(
        index=index,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )
    return GenerateDelta(request_id="r", choices=[choice], prompt_logprobs=prompt_logprobs)


def answer(
    token_ids: list[int],
    finish_reason: FinishReason | None = "length",
    *,
    prompt: list[int] | None = None,
    stop_reason: int | str | None = None,
    logprobs: Logprobs | None = None,
    prompt_logprobs: Logprobs | None = None,
) -> Generated:
    prompt_ids = prompt if prompt is not None else [1, 2]
    (choice,) = delta(token_ids, finish_reason, stop_reason=stop_reason, logprobs=logprobs).choices
    return Generated(
        request_id="r",
        model=MODEL,
        created=1,
        prompt_tokens=len(prompt_ids),
        choices=[choice],
        prompt_logprobs=prompt_logprobs,
        prompt_token_ids=prompt_ids,
    )


def cut(whole: Generated, cuts: Iterable[int]) -> list[GenerateDelta]:
    """The answer's one choice in several deltas; a stop token comes with its finish reason."""
    (choice,) = whole.choices
    num = len(choice.token_ids)
    last = num if choice.finish_reason == "length" else num - 1
    edges = [0, *sorted(each for each in cuts if 0 < each <= last), num]
    positions = list(choice.logprobs.positions()) if choice.logprobs else None
    deltas: list[GenerateDelta] = []
    for start, end in pairwise(edges):
        is_last = end == num and len(deltas) == len(edges) - 2
        deltas.append(
            delta(
                choice.token_ids[start:end],
                choice.finish_reason if is_last else None,
                stop_reason=choice.stop_reason if is_last else None,
                logprobs=pack_logprobs(positions[start:end]) if positions else None,
                prompt_logprobs=None if deltas else whole.prompt_logprobs,
            )
        )
    return deltas


def whole_body(derenderer: Derenderer, spec: ReplySpec, *answers: Generated) -> Any:
    return json.loads(derenderer.whole(spec, list(answers), request_id="r", created=1))


@dataclass
class Joined:
    """A stream put together again, per choice."""

    text: str = ""
    logprobs: Any = None
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[tuple[str, Any]] = field(default_factory=list)


def join_chunks(chunks: Iterable[Any]) -> dict[int, Joined]:
    """Texts, entries and reasons of OpenAI stream chunks by choice index."""
    joined: dict[int, Joined] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            into = joined.setdefault(choice["index"], Joined())
            into.text += choice["text"] if "text" in choice else choice["delta"]["content"]
            into.token_ids += choice.get("token_ids") or []
            if choice["finish_reason"] is not None:
                into.finish_reasons.append((choice["finish_reason"], choice["stop_reason"]))
            if choice["logprobs"] is not None:
                into.logprobs = into.logprobs or {}
                for name, entries in choice["logprobs"].items():
                    into.logprobs.setdefault(name, []).extend(entries)
    return joined


def stream_chunks(
    derenderer: Derenderer, spec: ReplySpec, deltas: Iterable[GenerateDelta], prompt: list[int]
) -> list[Any]:
    reply = derenderer.open(spec, request_id="r", created=1, prompts=[prompt])
    return [json.loads(chunk) for each in deltas for chunk in reply.feed(0, each).chunks]


def stateless_chunks(
    derenderer: Derenderer, spec: ReplySpec, deltas: Iterable[GenerateDelta], prompt: list[int]
) -> tuple[list[Any], list[str]]:
    """The chunks, and the state after each."""
    chunks, states = [], []
    state: str | None = None
    for each in deltas:
        chunk, state = derenderer.feed_stateless(
            spec,
            each,
            state,
            request_id="r",
            created=1,
            prompt_tokens=len(prompt),
            prompt_token_ids=prompt,
        )
        chunks.append(json.loads(chunk))
        states.append(state)
    return chunks, states


def _table(model: dict[str, Any], decoder: dict[str, Any], num_pieces: int) -> TokenTable:
    added = [
        {"id": num_pieces, "content": "<tool>", "special": False},
        {"id": num_pieces + 1, "content": "<|s|>", "special": True},
        {"id": num_pieces + 2, "content": "</s>", "special": True},
    ]
    tokenizer = {"added_tokens": added, "decoder": decoder, "model": model}
    return parse_token_table(json.dumps(tokenizer).encode())


TABLES = {
    "byte_level": byte_level_table(),
    "byte_fallback": byte_fallback_table(),
    "unigram": unigram_table(),
}
