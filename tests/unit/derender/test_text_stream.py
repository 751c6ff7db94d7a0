import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.logprobs import pack_logprobs
from triptych.wire import ChoiceDelta
from triptych_derender.choice import ChoiceState, TextRules, open_choice
from triptych_derender.pieces import Piece
from triptych_derender.text_stream import (
    MAX_HELD_BYTES,
    flush_bytes,
    incomplete_tail_len,
    push_bytes,
    shown_text,
)
from triptych_derender.token_table import TokenTable, parse_token_table
from unit.derender.toys import TABLES, eos_id

TABLE = TABLES["byte_level"]


def ids_of(*raws: bytes) -> list[int]:
    return [TABLE.bytes_of.index(raw) for raw in raws]


def run(table: TokenTable, case: Any) -> Piece:
    rules = TextRules(table=table, skip_special=case["skip_special_tokens"])
    choice = ChoiceDelta(
        index=0,
        token_ids=case["token_ids"],
        logprobs=pack_logprobs(case["logprobs"]),
        finish_reason=case["finish_reason"],
        stop_reason=case["stop_reason"],
    )
    return open_choice(ChoiceState(), rules).feed(choice)


def strings(table: TokenTable, piece: Piece, *, skip_special: bool = True) -> list[str]:
    return [
        shown_text(table, entry.held, entry.token_id, skip_special=skip_special)
        for entry in piece.entries
    ]


def is_start_of_character(data: bytes) -> bool:
    """Whether some continuation makes ``data`` one valid character (tried, not derived)."""
    missing = {0xC0: 1, 0xE0: 2, 0xF0: 3}.get(
        next(m for m in (0xF0, 0xE0, 0xC0, 0) if data[0] >= m), 0
    ) - (len(data) - 1)
    if missing <= 0:
        return False
    for first in (0x80, 0x90, 0xA0, 0xBF):
        try:
            if len((data + bytes([first]) + b"\x80" * (missing - 1)).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


def test_token_strings_follow_rule_h_on_eight_tokenizers(golden: Any) -> None:
    table = parse_token_table(json.dumps(golden["tokenizer_json"]).encode())
    for case in golden["cases"]:
        piece = run(table, case)
        shown = strings(table, piece, skip_special=case["skip_special_tokens"])
        assert shown == case["hold_tokens"], case["name"]
        own = [table.token_bytes(entry.token_id).hex() for entry in piece.entries]
        assert own == case["bytes_hex"], case["name"]


def test_stream_text_equals_vllms_at_every_recorded_split(golden: Any) -> None:
    table = parse_token_table(json.dumps(golden["tokenizer_json"]).encode())
    num_compared = 0
    for case in golden["cases"]:
        if run(table, case).text != case["vllm_text"] or "\ufffd" in case["vllm_text"]:
            continue  # a truncated end, invalid bytes, a kept special token or first space
        rules = TextRules(table=table, skip_special=case["skip_special_tokens"])
        for split in case["streams"]:
            stream = open_choice(ChoiceState(), rules)
            for number, (start, end, text) in enumerate(split):
                is_last = number == len(split) - 1
                part = ChoiceDelta(
                    index=0,
                    token_ids=case["token_ids"][start:end],
                    finish_reason=case["finish_reason"] if is_last else None,
                )
                piece = stream.feed(part)
                num_compared += 1
                assert piece.text == text, (case["name"], split)
    assert num_compared > 50


@pytest.mark.parametrize("length", [1, 2, 3])
def test_pending_bytes_are_exactly_the_starts_of_characters(length: int) -> None:
    interesting = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF]
    interesting += [0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    for data in map(bytes, itertools.product(interesting, repeat=length)):
        expected = next((n for n in range(length, 0, -1) if is_start_of_character(data[-n:])), 0)
        assert incomplete_tail_len(data) == expected, data


@pytest.mark.parametrize(
    ("raws", "expected"),
    [
        ([b"\xe2\x80", b"\x99s"], ["", "\u2019s"]),
        ([b"\xe4\xb8", b"\x96\xe7", b"\x95\x8c"], ["", "", "世界"]),
        (["�".encode()], ["�"]),
        ([b"\xe2", b"a"], ["", "\ufffda"]),
        ([b"\x80"], ["\ufffd"]),
        ([b"\xed\xa0", b"b"], ["\ufffd\ufffd", "b"]),
        ([b" \xf0\x9f", b"\x98", b"\x80"], ["", "", " 😀"]),
    ],
)
def test_token_strings_where_vllm_loses_characters(raws: list[bytes], expected: list[str]) -> None:
    choice = ChoiceDelta(index=0, token_ids=ids_of(*raws), finish_reason="length")
    piece = open_choice(ChoiceState(), TextRules(table=TABLE)).feed(choice)
    assert strings(TABLE, piece) == expected
    assert piece.text == "".join(expected)


@pytest.mark.parametrize("character", ["é", "世", "😀", "\u07ff", "\uffff", "\U0010ffff"])
def test_character_cut_over_tokens_shows_whole_in_the_completing_token(character: str) -> None:
    raw = character.encode()
    for cut in range(1, len(raw)):
        parts = [*raw[:cut], *raw[cut:]]
        choice = ChoiceDelta(index=0, token_ids=list(parts), finish_reason="length")
        piece = open_choice(ChoiceState(), TextRules(table=TABLE)).feed(choice)
        assert strings(TABLE, piece) == [""] * (len(raw) - 1) + [character]


def test_skipped_special_token_does_not_disturb_pending_bytes() -> None:
    first, second = "é".encode()
    choice = ChoiceDelta(index=0, token_ids=[first, eos_id(TABLE), second], finish_reason="length")
    piece = open_choice(ChoiceState(), TextRules(table=TABLE)).feed(choice)
    assert strings(TABLE, piece) == ["", "</s>", "é"]
    assert piece.text == "é"
    kept = open_choice(ChoiceState(), TextRules(table=TABLE, skip_special=False)).feed(choice)
    assert kept.text == "\ufffd</s>\ufffd"


def test_alternative_in_context_does_not_change_the_context() -> None:
    held = b"\xe2\x80"
    assert shown_text(TABLE, held, 0x99, skip_special=True) == "\u2019"
    assert shown_text(TABLE, held, ord("a"), skip_special=True) == "\ufffda"
    assert shown_text(TABLE, held, eos_id(TABLE), skip_special=True) == "</s>"
    assert shown_text(TABLE, held, 10_000, skip_special=True) == ""


def test_held_text_is_bounded() -> None:
    held, shown = b"", ""
    for _ in range(1000):
        text, held = push_bytes(held, b"abc\xe4")
        shown += text
        assert len(held) <= MAX_HELD_BYTES
    assert shown + flush_bytes(held) == (b"abc\xe4" * 1000).decode(errors="replace")


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_shown_texts_join_to_the_decoded_bytes(raws: list[bytes]) -> None:
    held, shown = b"", ""
    for raw in raws:
        text, held = push_bytes(held, raw)
        shown += text
    assert shown + flush_bytes(held) == b"".join(raws).decode(errors="replace")
