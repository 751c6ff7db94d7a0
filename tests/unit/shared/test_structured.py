"""Bounds of structured outputs, and the checksum of a vocabulary."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError
from triptych.structured import MAX_CHARS, check_structured, digest_of
from triptych.wire import StructuredOutputs


@pytest.mark.parametrize(
    "outputs",
    [
        StructuredOutputs(json={"type": "object"}),
        StructuredOutputs(json="true"),
        StructuredOutputs(json_object=True),
        StructuredOutputs(regex=""),
        StructuredOutputs(regex="a" * MAX_CHARS),
        StructuredOutputs(choice=["a" * (MAX_CHARS - 1), "b"]),
        StructuredOutputs(grammar="root ::= x", json_object=False),
        StructuredOutputs(structural_tag='{"format": {"json_schema": {"type": "object"}}}'),
    ],
    ids=lambda outputs: repr(outputs)[:60],
)
def test_structured_outputs_within_bounds_pass(outputs: StructuredOutputs) -> None:
    check_structured(outputs, "s")


@pytest.mark.parametrize(
    ("outputs", "param", "says"),
    [
        (StructuredOutputs(), "s", "it holds nothing"),
        (StructuredOutputs(json_object=False), "s", "it holds nothing"),
        (StructuredOutputs(regex="a", grammar="b"), "s", "regex and grammar"),
        (StructuredOutputs(choice=[]), "s.choice", "not empty"),
        (StructuredOutputs(choice=["a", ""]), "s.choice", "not empty"),
        (StructuredOutputs(regex="a" * (MAX_CHARS + 1)), "s.regex", "131,073 characters"),
        (StructuredOutputs(json='{"a": }'), "s.json", "not valid JSON"),
        (StructuredOutputs(json="[" * 100_000), "s.json", "not valid JSON"),
        (StructuredOutputs(json="5"), "s.json", "no schema"),
        (StructuredOutputs(json={"items": {"not": {}}}), "s.json.items.not", "cannot be held"),
        (StructuredOutputs(structural_tag="[" * 100_000), "s.structural_tag", "not valid JSON"),
        (
            StructuredOutputs(structural_tag=" " * (2 * MAX_CHARS + 1)),
            "s.structural_tag",
            "limit is 262,144",
        ),
        (
            StructuredOutputs(structural_tag='{"format": [{"json_schema": {"not": {}}}]}'),
            "s.structural_tag.not",
            "cannot be held",
        ),
        (
            StructuredOutputs(
                structural_tag='{"a": {"json_schema": {"$comment": "tools[1]", "not": {}}}}'
            ),
            "tools[1].not",
            "cannot be held",
        ),
        (StructuredOutputs(regex="a", whitespace_pattern=" "), "s.whitespace_pattern", "leave it"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_structured_outputs_out_of_bounds_are_refused(
    outputs: StructuredOutputs, param: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check_structured(outputs, "s")
    assert (error.value.param, says in error.value.message) == (param, True), error.value.message


def test_digest_is_that_of_the_tokens_with_their_lengths() -> None:
    told = b"\x01\x00\x00\x00a" + b"\x00\x00\x00\x00" + b"\x02\x00\x00\x00bc"
    assert digest_of([b"a", b"", b"bc"]) == hashlib.sha256(told).hexdigest()


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_digest_tells_tokens_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)
