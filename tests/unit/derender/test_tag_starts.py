"""What first_characters says of patterns, against a search for them by ``regex``."""

import pytest
import regex  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from triptych_derender.tag_starts import first_characters

#: First characters; None: any.
PATTERNS: dict[str, str | None] = {
    "abc": "a",
    r"\[TOOL\](?P<name>\w+)|<x>": "[<",
    r"(?:a|\|b)c(?=d)": "a|",
    r"`{3}x|``y": None,  # a quantifier may mean none
    r"```(?:json|)\n": "`",
    r"(?:\A\s{0,8}|\A```)(?=\{)": "",
    r"\A\[": "",
    r"(?:\A|\n)`": None,
    r"(?:a|b)?c": None,
    r"a?b": None,
    r"a*b": None,
    r"a{0,2}b": None,
    r"[ab]c": None,
    r"[|]a|\sb": None,
    r"\s+a": None,
    r"(a)b": None,
    r"(?i:a)": None,
    r"(?<=a)b": None,
    r"a|": None,
    r"\A?a": None,
    "a(?i)b": None,
    "a(?#()|b": None,
    "a[[:alpha:](]|b": None,
    "$": None,
    ".": None,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_known_starts(pattern: str) -> None:
    expected = PATTERNS[pattern]
    assert first_characters(pattern, None) == (None if expected is None else frozenset(expected))


def test_literals_begin_with_their_first_characters() -> None:
    assert first_characters(r"</a>|\[b", ["</a>", "[b"]) == frozenset("<[")


@given(st.data())
def test_no_match_begins_elsewhere(data: st.DataObject) -> None:
    known = {pattern: starts for pattern, starts in PATTERNS.items() if starts is not None}
    pattern = data.draw(st.sampled_from(sorted(known)))
    before = data.draw(st.text("ab[{`|<\n ", min_size=1, max_size=3))
    text = data.draw(st.text("abcTOL[]{`|<x>\n ", max_size=12))
    plain = "".join(each for each in text if each not in known[pattern])
    match = regex.search(pattern, before + plain, pos=len(before), partial=True)
    assert match is None or match.span() == (len(before + plain),) * 2
