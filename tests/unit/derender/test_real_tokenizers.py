"""Bytes as a property on eight real tokenizers, cut down to the golden cases' tokens.

byte level, byte fallback, unigram pieces, and added tokens that are and are not special.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.reply import ReplySpec
from triptych_derender.token_table import TokenTable, parse_token_table
from unit.derender.toys import (
    answer,
    cut,
    join_chunks,
    score,
    stream_chunks,
    toy_derenderer,
    whole_body,
)

_DATA = Path(__file__).parent / "data"


def _mini(name: str) -> dict[str, Any]:
    tokenizer: dict[str, Any] = json.loads((_DATA / name).read_bytes())["tokenizer_json"]
    return tokenizer


def _as_unigram(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The same pieces as a Unigram model with a Metaspace decoder, and an added token of text."""
    vocab = tokenizer["model"]["vocab"]
    pieces = [[piece, -1.0] for piece in sorted(vocab, key=vocab.__getitem__)]
    added = [
        {**token, "id": len(pieces) + number}
        for number, token in enumerate(tokenizer["added_tokens"])
    ]
    added.append({"id": len(pieces) + len(added), "content": "<tool> ▁", "special": False})
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "model": {"type": "Unigram", "vocab": pieces},
        "added_tokens": added,
        "decoder": decoder,
    }


_TOKENIZERS = {
    path.stem.removeprefix("golden_"): _mini(path.name) for path in _DATA.glob("golden_*")
}
_TOKENIZERS["unigram"] = _as_unigram(_TOKENIZERS["mistral_v1"])
_TABLES = {
    name: parse_token_table(json.dumps(each).encode()) for name, each in sorted(_TOKENIZERS.items())
}
_DERENDERERS = {name: toy_derenderer(table) for name, table in _TABLES.items()}


def _known_ids(table: TokenTable) -> list[int]:
    return [token_id for token_id, raw in enumerate(table.bytes_of) if raw]


_KNOWN = {name: _known_ids(table) for name, table in _TABLES.items()}


def test_the_tables_are_of_every_kind() -> None:
    decoders = json.dumps([each["decoder"] for each in _TOKENIZERS.values()])
    assert len(_TABLES) == 9
    assert all(kind in decoders for kind in ("ByteLevel", "ByteFallback", "Metaspace"))
    assert any(
        not token["special"] for each in _TOKENIZERS.values() for token in each["added_tokens"]
    )
    partial = [name for name, table in _TABLES.items() if None in table.text_of]
    assert len(partial) == 8  # a Unigram piece has no partial characters


@pytest.mark.parametrize("name", _TABLES)
@given(data=st.data())
@settings(max_examples=40)
def test_any_ids_at_any_cut_give_the_outputs_bytes_and_the_same_stream(
    name: str, data: st.DataObject
) -> None:
    table, derenderer = _TABLES[name], _DERENDERERS[name]
    token_id = st.sampled_from(_KNOWN[name]) | st.just(table.num_tokens + 7)
    token_ids = data.draw(st.lists(token_id, min_size=1, max_size=16))
    cuts = data.draw(st.sets(st.integers(1, 16)))
    skips = data.draw(st.booleans())
    spec = ReplySpec(
        endpoint=data.draw(st.sampled_from(["chat", "completions"])),
        model="toy",
        logprobs=True,
        top_logprobs=1,
        skip_special_tokens=skips,
    )
    generated = answer(token_ids, logprobs=score(token_ids))
    (whole,) = whole_body(derenderer, spec, generated)["choices"]
    text = whole["text"] if "text" in whole else whole["message"]["content"]
    visible = [i for i in token_ids if not (skips and i in table.special_ids)]
    assert text == b"".join(map(table.token_bytes, visible)).decode(errors="replace")
    if spec.endpoint == "chat":
        entries = whole["logprobs"]["content"]
        raw = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert raw == b"".join(map(table.token_bytes, token_ids))
    chunks = stream_chunks(derenderer, spec, cut(generated, cuts), [1])
    joined = join_chunks(chunks)[0]
    assert (joined.text, joined.logprobs) == (text, whole["logprobs"])


@pytest.mark.parametrize("name", _TABLES)
@given(data=st.data())
@settings(max_examples=25)
def test_text_that_was_sent_is_never_taken_back(name: str, data: st.DataObject) -> None:
    """Whatever comes next: the text sent so far begins every possible answer."""
    table, derenderer = _TABLES[name], _DERENDERERS[name]
    token_ids = data.draw(st.lists(st.sampled_from(_KNOWN[name]), min_size=2, max_size=12))
    spec = ReplySpec(endpoint="completions", model="toy", skip_special_tokens=False)
    reply = derenderer.open(spec, request_id="r", created=1, prompts=[[1]])
    sent = ""
    for number, each in enumerate(cut(answer(token_ids), range(1, len(token_ids)))):
        chunks = map(json.loads, reply.feed(0, each).chunks)
        sent += "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        other = data.draw(st.sampled_from(_KNOWN[name]))
        for ids in (token_ids, [*token_ids[: number + 1], other]):
            raw = b"".join(map(table.token_bytes, ids))
            if number + 1 < len(token_ids):
                assert raw.decode(errors="replace").startswith(sent)
    assert sent == b"".join(map(table.token_bytes, token_ids)).decode(errors="replace")
