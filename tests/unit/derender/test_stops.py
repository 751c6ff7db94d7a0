import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.reply import ReplySpec
from triptych_derender.stops import find_stop, held_back_len
from unit.derender.toys import (
    TABLES,
    answer,
    cut,
    eos_id,
    join_chunks,
    score,
    stream_chunks,
    toy_derenderer,
    whole_body,
)

TABLE = TABLES["byte_level"]
DERENDERER = toy_derenderer(TABLE)


def spec(**fields: Any) -> ReplySpec:
    base: dict[str, Any] = {"endpoint": "completions", "model": "toy", "return_token_ids": True}
    return ReplySpec(**base | fields)


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("text", "num_new", "stops", "expected"),
    [
        ("abcd", 4, ["c", "b"], (1, "b")),
        ("abcd", 1, ["bcd", "cd"], (1, "bcd")),
        ("abcd", 1, ["b"], None),
        ("abab", 1, ["ab"], (2, "ab")),
        ("aaa", 1, ["aa"], (1, "aa")),
        ("ab", 2, ["abc", "a"], (0, "a")),
        ("ab", 2, ["ab", "a"], (0, "a")),
        ("", 0, ["a"], None),
    ],
)
def test_find_stop_takes_the_earliest_that_ends_in_new_text(
    text: str, num_new: int, stops: list[str], expected: tuple[int, str] | None
) -> None:
    assert find_stop(text, num_new, stops) == expected


@given(st.text("ab<", max_size=8), st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3))
def test_held_back_is_the_longest_end_that_begins_a_stop_string(
    text: str, stops: list[str]
) -> None:
    starts = {stop[:length] for stop in stops for length in range(1, len(stop))}
    expected = max((n for n in range(len(text) + 1) if text[len(text) - n :] in starts), default=0)
    assert held_back_len(text, stops) == expected


def test_stop_string_inside_a_token_cuts_text_and_ends_ids_there() -> None:
    token_ids = [TABLE.bytes_of.index(raw) for raw in (b"ab", b" the", b"abc", b"ab")]
    body = whole_body(
        DERENDERER, spec(stop=["heab"], logprobs=True), answer(token_ids, logprobs=score(token_ids))
    )
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "ab t",
        "stop",
        "heab",
    )
    assert choice["token_ids"] == token_ids[:3]
    assert choice["logprobs"]["tokens"] == ["ab", " the", "abc"]
    assert choice["logprobs"]["text_offset"] == [0, 2, 4]
    assert body["usage"]["completion_tokens"] == 3


def test_text_offset_never_counts_characters_that_were_cut() -> None:
    token_ids = ids("x<end>yz")
    body = whole_body(
        DERENDERER,
        spec(stop=["<end>"], logprobs=True),
        answer(token_ids, logprobs=score(token_ids)),
    )
    (choice,) = body["choices"]
    assert choice["text"] == "x"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 1]


def test_stop_string_is_kept_where_asked() -> None:
    body = whole_body(
        DERENDERER, spec(stop=["b"], include_stop_str_in_output=True), answer(ids("abc"))
    )
    assert body["choices"][0]["text"] == "ab"


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "aba"), (3, "aba"), (4, "abab"), (9, "abab")]
)
def test_min_tokens_delays_stop_strings(min_tokens: int, text: str) -> None:
    body = whole_body(DERENDERER, spec(stop=["b"], min_tokens=min_tokens), answer(ids("abab")))
    assert body["choices"][0]["text"] == text


def test_stop_string_that_spans_the_min_tokens_border_counts() -> None:
    body = whole_body(DERENDERER, spec(stop=["abc"], min_tokens=2), answer(ids("xabcd")))
    assert body["choices"][0]["text"] == "x"


@pytest.mark.parametrize("skip_special", [True, False])
def test_stop_token_is_kept_in_ids_and_dropped_from_text(skip_special: bool) -> None:
    token_ids = [*ids("a"), eos_id(TABLE)]
    body = whole_body(
        DERENDERER,
        spec(skip_special_tokens=skip_special, logprobs=True),
        answer(token_ids, "stop", logprobs=score(token_ids)),
    )
    (choice,) = body["choices"]
    assert (choice["text"], choice["token_ids"]) == ("a", token_ids)
    assert choice["logprobs"]["tokens"] == ["a", "</s>"]
    assert choice["logprobs"]["text_offset"] == [0, 1]


def test_stop_token_stays_in_text_with_include_stop() -> None:
    token_ids = [*ids("a\n")]
    kept = spec(include_stop_str_in_output=True)
    body = whole_body(DERENDERER, kept, answer(token_ids, "stop", stop_reason=10))
    assert (body["choices"][0]["text"], body["choices"][0]["stop_reason"]) == ("a\n", 10)
    body = whole_body(DERENDERER, spec(), answer(token_ids, "stop", stop_reason=10))
    assert body["choices"][0]["text"] == "a"


def test_stop_string_before_the_stop_token_wins() -> None:
    token_ids = [*ids("ab"), eos_id(TABLE)]
    body = whole_body(DERENDERER, spec(stop=["b"]), answer(token_ids, "stop"))
    (choice,) = body["choices"]
    assert (choice["text"], choice["stop_reason"], choice["token_ids"]) == ("a", "b", ids("ab"))


def test_held_entries_travel_with_the_text_that_carries_them() -> None:
    token_ids = ids("x<enough")
    reply = DERENDERER.open(
        spec(stop=["<end>"], logprobs=True), request_id="r", created=1, prompts=[[1]]
    )
    sent = []
    for each in cut(answer(token_ids, logprobs=score(token_ids)), range(8)):
        joined = join_chunks(map(json.loads, reply.feed(0, each).chunks)).get(0)
        sent.append((joined.text, joined.logprobs["tokens"]) if joined else None)
    assert sent[:5] == [("x", ["x"]), None, None, None, ("<eno", ["<", "e", "n", "o"])]


def test_stop_in_a_stream_ends_the_choice_once_and_says_so() -> None:
    reply = DERENDERER.open(
        spec(stop=["b"], include_usage=True), request_id="r", created=1, prompts=[[1]]
    )
    deltas = cut(answer(ids("abcd")), range(5))
    first, second, third = (reply.feed(0, each) for each in deltas[:3])
    assert (first.done_prompts, first.is_done) == ([], False)
    assert (second.done_prompts, second.is_done) == ([0], True)
    assert json.loads(second.chunks[-1])["choices"] == []
    assert json.loads(second.chunks[-1])["usage"]["completion_tokens"] == 2
    assert (third.chunks, third.done_prompts, third.is_done) == ([], [], True)


_TEXTS = st.text("ab<>é", max_size=12)


@given(
    text=_TEXTS,
    stops=st.lists(st.text("ab<>é", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
    cuts=st.sets(st.integers(1, 20)),
)
def test_stops_agree_with_a_slow_search_at_any_cut(
    text: str, stops: list[str], min_tokens: int, include: bool, cuts: set[int]
) -> None:
    token_ids = ids(text)
    asked = spec(stop=stops, min_tokens=min_tokens, include_stop_str_in_output=include)
    expected = _slow_stop(token_ids, stops, min_tokens, include=include)
    chunks = stream_chunks(DERENDERER, asked, cut(answer(token_ids), cuts), [1])
    joined = join_chunks(chunks)[0]
    assert (joined.text, joined.token_ids, joined.finish_reasons) == expected


def _slow_stop(
    token_ids: list[int], stops: list[str], min_tokens: int, *, include: bool
) -> tuple[str, list[int], list[tuple[str, str | None]]]:
    """After every token, search the whole text that is complete so far."""
    seen = 0
    for position in range(len(token_ids)):
        text = bytes(token_ids[: position + 1]).decode(errors="ignore")
        found = [
            (start, len(stop), stop)
            for stop in stops
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > seen
        ]
        if found and position >= min_tokens:
            start, length, stop = min(found)
            cut_text = text[: start + length] if include else text[:start]
            return cut_text, token_ids[: position + 1], [("stop", stop)]
        seen = len(text)
    return bytes(token_ids).decode(), token_ids, [("length", None)]
