"""Faults of other systems in token strings and bytes: a hand-made answer through derender."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from triptych.logprobs import pack_logprobs
from triptych.reply import Endpoint, ReplySpec
from triptych_derender.token_table import TokenTable, parse_token_table
from unit.derender.toys import (
    TABLES,
    answer,
    byte_alphabet,
    cut,
    join_chunks,
    stream_chunks,
    toy_derenderer,
    whole_body,
)

#: Borders of UTF-8's lengths and of its second byte's ranges, and letters in use.
CHARACTERS = [*"\x80é߿ࠀ世퟿\ue000�￿", *"\U00010000😀\U0003ffff\U0010ffff"]
REPLACEMENT = "�".encode()


def splits(raw: bytes) -> Iterator[list[bytes]]:
    """``raw`` cut at every set of places."""
    for cuts in range(1 << (len(raw) - 1)):
        edges = [0, *(n for n in range(1, len(raw)) if cuts >> (n - 1) & 1), len(raw)]
        yield [raw[start:end] for start, end in pairwise(edges)]


def byte_level_table(raws: list[bytes]) -> TokenTable:
    letters = byte_alphabet()
    vocab = {"".join(letters[byte] for byte in raw): index for index, raw in enumerate(raws)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return parse_token_table(
        json.dumps({"model": model, "decoder": {"type": "ByteLevel"}}).encode()
    )


def choice_of(table: TokenTable, *raws: bytes, endpoint: Endpoint = "chat", **fields: Any) -> Any:
    """The one choice of an output of tokens with these bytes, each scored alone."""
    token_ids = [table.bytes_of.index(raw) for raw in raws]
    scores = pack_logprobs([(token_id, -1.0, 1)] for token_id in token_ids)
    spec = ReplySpec(endpoint=endpoint, model="toy", logprobs=True, top_logprobs=0, **fields)
    body = whole_body(toy_derenderer(table), spec, answer(token_ids, logprobs=scores))
    return body["choices"][0]


def test_cases_01_03_partial_characters_keep_their_own_bytes_at_every_cut() -> None:
    texts = [parts for character in CHARACTERS for parts in splits(character.encode())]
    flat = [part for parts in texts for part in parts]
    table = byte_level_table(sorted({*flat}))
    choice = choice_of(table, *flat)
    entries = choice["logprobs"]["content"]
    assert [bytes(entry["bytes"]) for entry in entries] == flat
    assert choice["message"]["content"].encode() == b"".join(flat)
    shown = iter(entry["token"] for entry in entries)
    for parts in texts:
        *early, last = [next(shown) for _ in parts]
        assert early == [""] * (len(parts) - 1)
        assert last == b"".join(parts).decode()


def test_case_02_characters_that_span_two_tokens_are_not_lost() -> None:
    table = byte_level_table(
        [b"\xe2\x80", b"\x99s", b"\xe4\xb8", b"\x96\xe7", b"\x95\x8c", b"\xc3"]
    )
    for raws, strings in (
        ([b"\xe2\x80", b"\x99s"], ["", "\u2019s"]),
        ([b"\xe4\xb8", b"\x96\xe7", b"\x95\x8c"], ["", "", "世界"]),
        ([b"\xc3", b"\x99s"], ["", "Ùs"]),
        ([b"\xc3", b"\xe4\xb8", b"\x96\xe7", b"\x95\x8c"], ["", "", "", "\ufffd世界"]),
    ):
        choice = choice_of(table, *raws)
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == strings
        assert choice["message"]["content"] == "".join(strings)


def test_case_04_a_real_replacement_character_is_told_from_a_cut_one() -> None:
    table = byte_level_table([REPLACEMENT, b"\xf0\x9f", b"a"])
    choice = choice_of(table, REPLACEMENT, b"\xf0\x9f", REPLACEMENT, b"\xf0\x9f", b"a")
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["�", "", "��", "", "�a"]
    assert [bytes(entry["bytes"]) for entry in entries] == [
        REPLACEMENT,
        b"\xf0\x9f",
        REPLACEMENT,
        b"\xf0\x9f",
        b"a",
    ]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_cases_05_53_no_stand_in_letters_of_the_byte_alphabet(endpoint: Endpoint) -> None:
    words = ["Grüße", " 你好", " мир", "\n\t", " 😀é"]
    table = byte_level_table([word.encode() for word in words])
    choice = choice_of(table, *(word.encode() for word in words), endpoint=endpoint)
    if endpoint == "completions":
        assert choice["text"] == "".join(words)
        assert choice["logprobs"]["tokens"] == words
        assert [list(each) for each in choice["logprobs"]["top_logprobs"]] == [[w] for w in words]
        return
    assert choice["message"]["content"] == "".join(words)
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == words


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "unigram"])
def test_case_07_candidates_differ_by_their_leading_space(name: str) -> None:
    spaces = {
        "type": "Unigram",
        "vocab": [["▁the", 0.0], ["the", 0.0], ["▁▁the", 0.0], ["▁", 0.0]],
    }
    table = {
        "byte_level": byte_level_table([b" the", b"the", b"  the", b" "]),
        "byte_fallback": table_like("byte_fallback", spaces),
        "unigram": table_like("unigram", spaces),
    }[name]
    wanted = [" the", "the", "  the", " "]
    scores = pack_logprobs([[(token_id, -1.0 - token_id, token_id + 1) for token_id in range(4)]])
    chat = ReplySpec(endpoint="chat", model="toy", logprobs=True, top_logprobs=4)
    completion = ReplySpec(endpoint="completions", model="toy", logprobs=True, top_logprobs=4)
    generated = answer([0], logprobs=scores)
    derenderer = toy_derenderer(table)
    (entry,) = whole_body(derenderer, chat, generated)["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in entry["top_logprobs"]] == wanted
    shown = whole_body(derenderer, completion, generated)["choices"][0]["logprobs"]
    assert list(shown["top_logprobs"][0]) == wanted


DECODERS: dict[str, Any] = {
    "byte_fallback": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    "unigram": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
}


def table_like(decoder: str, model: dict[str, Any]) -> TokenTable:
    """``byte_fallback`` is Llama 2's legacy layout: a normalizer and no pre-tokenizer."""
    normalizer = {"type": "Prepend", "prepend": "▁"} if decoder == "byte_fallback" else None
    tokenizer = {"model": model, "normalizer": normalizer, "decoder": DECODERS[decoder]}
    return parse_token_table(json.dumps(tokenizer).encode())


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("cuts", [(), (1, 2)])
def test_case_08_words_do_not_stick_together(decoder: str, cuts: tuple[int, ...]) -> None:
    table = table_like(decoder, {"type": "Unigram", "vocab": [["▁A", 0.0], ["▁B", 0.0]]})
    scores = pack_logprobs([(token_id, -1.0, 1)] for token_id in (0, 1, 0))
    generated = answer([0, 1, 0], logprobs=scores)
    spec = ReplySpec(endpoint="completions", model="toy", logprobs=True, top_logprobs=0)
    joined = join_chunks(stream_chunks(toy_derenderer(table), spec, cut(generated, cuts), [1]))[0]
    assert joined.text == " A B A"
    assert joined.logprobs["tokens"] == [" A", " B", " A"]
    assert joined.logprobs["text_offset"] == [0, 2, 4]


@pytest.mark.parametrize("name", TABLES)
def test_case_10_every_candidate_has_its_string_and_bytes(name: str) -> None:
    table = TABLES[name]
    ids = list(range(table.num_tokens - 6, table.num_tokens))
    scores = pack_logprobs([[(token_id, -1.0, 1) for token_id in ids]])
    spec = ReplySpec(endpoint="chat", model="toy", logprobs=True, top_logprobs=5)
    body = whole_body(toy_derenderer(table), spec, answer(ids[:1], logprobs=scores))
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == 5
    for token_id, candidate in zip(ids, entry["top_logprobs"], strict=False):
        assert bytes(candidate["bytes"]) == table.token_bytes(token_id) != b""
        assert candidate["token"] == table.token_bytes(token_id).decode(errors="replace") or (
            candidate["token"] == ""  # the start of a character
            and table.token_text(token_id) is None
        )


def test_case_50_spaces_around_special_tokens_are_as_generated() -> None:
    table = TABLES["byte_level"]
    raws = [b"a", b"<tool>", b"b", b" ", b"<|s|>", b"</s>", b" ", b"c"]
    choice = choice_of(table, *raws, endpoint="completions", skip_special_tokens=False)
    assert choice["text"] == "a<tool>b <|s|></s> c"
    assert choice["logprobs"]["text_offset"] == [0, 1, 7, 8, 9, 14, 18, 19]


def test_case_51_special_tokens_are_in_the_entries_and_not_in_the_text() -> None:
    table = TABLES["byte_level"]
    raws = [b"a", b"<|s|>", b"b"]
    for skips, text in ((True, "ab"), (False, "a<|s|>b")):
        choice = choice_of(table, *raws, skip_special_tokens=skips)
        assert choice["message"]["content"] == text
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert tokens == ["a", "<|s|>", "b"]
