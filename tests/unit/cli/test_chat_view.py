"""How answers are painted, whatever pieces they come in."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.client.replies import Candidate, Entry
from triptych_cli.chat_view import (
    COLOURS,
    ColourInk,
    MarkInk,
    TokenPainter,
    candidate_lines,
    legend,
    summary,
)

COLOURED = re.compile(r"\x1b\[38;5;(\d+)m(.*?)\x1b\[0m", re.DOTALL)
#: Tokens without text stand inside characters.
TOKENS = st.lists(st.sampled_from(["", "a", "ab", " the", "é世", "\n", "😀", "aa"]), max_size=12)


def entry(token: str, probability: float = 0.5, *others: Candidate) -> Entry:
    return Entry(token=token, logprob=math.log(probability), top_logprobs=list(others))


@given(TOKENS, st.lists(st.integers(0, 30), max_size=6), st.integers(0, 3))
def test_text_is_painted_token_by_token_however_it_comes(
    tokens: list[str], cuts: list[int], num_late: int
) -> None:
    """Text comes in any pieces, and entries with the end of their text or later."""
    text = "".join(tokens)
    painter, written, num_given = TokenPainter(ColourInk()), "", 0
    ends = [len("".join(tokens[: number + 1])) for number in range(len(tokens))]
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for start, end in itertools.pairwise(edges):
        num_due = sum(each <= end for each in ends)
        due = tokens[num_given : max(num_given, num_due - num_late)]
        num_given += len(due)
        written += painter.feed(text[start:end], [entry(token) for token in due])
    written += painter.feed("", [entry(token) for token in tokens[num_given:]])
    assert [part for _, part in COLOURED.findall(written)] == tokens
    assert painter.end() == ""


def test_tokens_that_the_text_leaves_out_are_passed_over() -> None:
    painter = TokenPainter(MarkInk(is_terminal=False))
    assert painter.feed("Hi", [entry("Hi", 0.25)]) == "Hi[25]"
    assert painter.feed("", [entry("<|im_end|>", 0.9)]) == ""
    assert painter.feed(" x\ufffd", [entry("<tag>"), entry(" x", 1)]) == " x[100]"
    assert painter.end() == "\ufffd"


@pytest.mark.parametrize("least", [bound for bound, _ in COLOURS])
def test_colours_change_at_their_bounds(least: float) -> None:
    colour = dict(COLOURS)[least]
    ((shown, _),) = COLOURED.findall(ColourInk().token("x", least))
    assert int(shown) == colour
    assert len(COLOURED.findall(legend(ColourInk()))) == len(COLOURS)


@pytest.mark.parametrize("ink", [ColourInk(), MarkInk(is_terminal=True)])
def test_terminal_is_not_told_to_do_anything(ink: ColourInk | MarkInk) -> None:
    said = "\x1b]0;title\x07 \x9b31m\tx\n"
    for written in (ink.plain(said), ink.token(said, 0.5), ink.aside(said)):
        left = re.sub(r"\x1b\[[0-9;]*m", "", written)
        assert left.removesuffix("[50]") == "\\x1b]0;title\\x07 \\x9b31m\tx\n"


def test_pipe_gets_the_text_as_it_is() -> None:
    assert MarkInk(is_terminal=False).plain("\x1b[1m") == "\x1b[1m"


def test_candidates_are_listed_with_the_token_first() -> None:
    best = Candidate(token=" The", logprob=math.log(0.6), token_id=1)
    own = Candidate(token="A\n", logprob=math.log(0.25), token_id=2)
    piece = Candidate(token="", logprob=-20.0, token_id=3, bytes=[0xF0, 0x9F])
    sampled = Entry(token="A\n", logprob=own.logprob, token_id=2, top_logprobs=[own, best, piece])
    inside = Entry(token="", logprob=piece.logprob, token_id=3, bytes=[0xF0, 0x9F])
    assert candidate_lines([sampled, inside], 3, MarkInk(is_terminal=False)) == [
        ' 25.0%  "A\\n"    " The" 60.0%  <f0 9f> <0.1%',
        " <0.1%  <f0 9f>",
    ]
    assert candidate_lines([sampled], 1, MarkInk(is_terminal=False)) == [' 25.0%  "A\\n"']


def test_summary_counts_every_sampled_token() -> None:
    assert summary([]) == ""
    entries = [entry("a", 0.5), entry("b", 0.125)]
    assert summary(entries) == "2 tokens, mean logprob -1.386, perplexity 4"
