"""The reader of server-sent events against what ``triptych.sse`` writes, however it is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych import sse
from triptych.client.events import EventReader
from triptych.errors import ContextLengthError, InternalError, TriptychError, UnavailableError

DATA = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=6
)


def read(wire: bytes, cuts: list[int]) -> tuple[list[bytes], TriptychError | None]:
    """What a reader gives of ``wire`` cut at ``cuts``, and how it ends."""
    reader = EventReader()
    given: list[bytes] = []
    ends = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    try:
        for start, end in itertools.pairwise(ends):
            given.extend(reader.feed(wire[start:end]))
        reader.end()
    except TriptychError as error:
        return given, error
    return given, None


@given(DATA, st.lists(st.integers(0, 2000), max_size=8), st.booleans())
def test_any_cut_gives_the_same_events(texts: list[str], cuts: list[int], has_crlf: bool) -> None:
    data = [b'"' + text.encode() + b'"' for text in texts]
    wire = sse.KEEP_ALIVE.join([b"", *(sse.frame([each]) for each in data), sse.DONE])
    if has_crlf:
        wire = wire.replace(b"\n", b"\r\n")
    assert read(wire + b"data: after the end\n\n", cuts) == (data, None)


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_error_event_is_raised_as_what_it_was(cuts: list[int]) -> None:
    sent = ContextLengthError("too long", param="prompt")
    given, error = read(sse.frame([b"{}"]) + sse.error_event(sent), cuts)
    assert given == [b"{}"]
    assert isinstance(error, ContextLengthError)
    assert (error.message, error.param) == ("too long", "prompt")


@pytest.mark.parametrize("data", [b"no json", b'{"error": "a text"}', b'{"error": {"code": 7}}'])
def test_error_event_of_another_form_is_an_internal_error(data: bytes) -> None:
    _, error = read(b"event: error\ndata: " + data + b"\n\n", [])
    assert isinstance(error, InternalError)


def test_stream_without_its_end_is_told_from_a_complete_one() -> None:
    given, error = read(sse.frame([b"1", b"2"]), [])
    assert given == [b"1", b"2"]
    assert isinstance(error, UnavailableError)
