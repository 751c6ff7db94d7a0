"""Lines to score: what they may be, and what is said of those that are not."""

import asyncio
import io
import json
import os
import threading
from typing import Any

import msgspec
import pytest

from triptych.client.scores import Score, ScoredToken
from triptych.errors import InvalidRequestError
from triptych_cli.client_settings import InputFormat
from triptych_cli.score_lines import (
    Line,
    Totals,
    kind_of,
    parse_line,
    read_lines,
    refused_line,
    scored_line,
)


@pytest.mark.parametrize(
    ("raw", "kind", "text", "given"),
    [
        (b"Hi \xe4\xb8\x96", "text", "Hi 世", {"text": "Hi 世"}),
        (b'{"a": 1}', "text", '{"a": 1}', {"text": '{"a": 1}'}),
        (b'{"id": 7, "q": "Hi"}', "jsonl", "Hi", {"id": 7, "q": "Hi"}),
        (b'{"q": [1, 2]}', "jsonl", [1, 2], {"q": [1, 2]}),
    ],
)
def test_line_is_a_text_with_what_stands_beside(
    raw: bytes, kind: InputFormat, text: Any, given: Any
) -> None:
    assert parse_line(Line(1, raw), kind, "q") == (text, given)


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        (b"\xff", "text", "not UTF-8 at byte 0"),
        (b"Hi", "jsonl", "not JSON"),
        (b"[" * 100_000, "jsonl", "not JSON: maximum recursion depth"),
        (b'{"q": "\xff"}', "jsonl", "not JSON"),
        (b"[1]", "jsonl", "an object is needed, not list"),
        (b'{"text": "Hi"}', "jsonl", "no field 'q'"),
        (b'{"q": 1}', "jsonl", "must be a text or a list of token ids"),
        (b'{"q": [1, true]}', "jsonl", "must be a text or a list of token ids"),
        (b'{"q": null}', "jsonl", "must be a text or a list of token ids"),
    ],
)
def test_line_that_is_none_is_refused_in_words(raw: bytes, kind: InputFormat, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_line(Line(1, raw), kind, "q")


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("x.jsonl", b"no JSON", "jsonl"),
        ("X.JSON", b"1", "jsonl"),
        ("-", b' {"text": 1}', "jsonl"),
        ("x.txt", b'{"text": 1}', "jsonl"),
        ("x.txt", b"Hi", "text"),
        ("-", b"[1]", "text"),
    ],
)
def test_kind_is_found_by_name_or_first_line(name: str, raw: bytes, kind: str) -> None:
    assert kind_of(name, Line(1, raw)) == kind


def test_scored_line_keeps_its_object_and_has_null_where_there_is_no_number() -> None:
    first = ScoredToken(token_id=5, logprob=None, rank=None, token="a")
    alone = json.loads(scored_line({"id": 1}, Score(tokens=[first]), has_tokens=False))
    assert alone == {"id": 1, "logprob": 0.0, "num_tokens": 1, "num_scored": 0, "perplexity": None}
    far = ScoredToken(token_id=6, logprob=-9999.0, rank=9, token="b")
    both = json.loads(scored_line({}, Score(tokens=[first, far]), has_tokens=True))
    assert (both["perplexity"], both["logprob"]) == (None, -9999.0)  # too large for a number
    assert [token["token"] for token in both["tokens"]] == ["a", "b"]


async def test_lines_are_numbered_with_the_empty_ones_left_out() -> None:
    source = io.BytesIO(b"a\n\n\r\nb\r\n c ")
    found = [line async for line in read_lines(source, num_ahead=1)]
    assert found == [Line(1, b"a"), Line(4, b"b"), Line(5, b" c ")]


async def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    source = io.BytesIO(b'\xef\xbb\xbf{"text": "a"}\r\n\xef\xbb\xbfb\n')
    found = [line.raw async for line in read_lines(source, num_ahead=1)]
    assert found == [b'{"text": "a"}', b"\xef\xbb\xbfb"]


def test_slow_pipe_holds_up_nothing_and_is_left_at_once() -> None:
    """A line comes out before the next one is there, and nobody waits for the end."""
    read_fd, write_fd = os.pipe()
    source = os.fdopen(read_fd, "rb")

    async def first() -> Line:
        return await anext(read_lines(source, num_ahead=4))

    os.write(write_fd, b"one\n")
    assert asyncio.run(first()) == Line(1, b"one")
    assert not source.closed
    readers = [thread for thread in threading.enumerate() if thread.name == "lines"]
    os.write(write_fd, b"two\n")
    os.close(write_fd)
    for thread in readers:
        thread.join(20)
    assert source.closed


@pytest.mark.parametrize("error", ["timeout", {"message": "of the input", "type": "t"}, None, 7])
def test_a_field_of_the_input_that_is_named_error_is_no_refusal(error: Any) -> None:
    score = Score(tokens=[ScoredToken(token="a", token_id=1, logprob=-1.5, rank=1)])
    totals = Totals()
    totals.add(scored_line({"text": "a", "error": error}, score, has_tokens=False))
    totals.add(refused_line(Line(2, b""), InvalidRequestError("no text")))
    assert (totals.num_lines, totals.num_refused, totals.logprob) == (2, 1, -1.5)
    assert totals.first_refusal == "line 2: no text"


def test_what_is_neither_scored_nor_refused_is_not_added() -> None:
    totals = Totals()
    with pytest.raises(msgspec.ValidationError):
        totals.add(b'{"text": "a"}')
    assert totals == Totals()
