"""Packed columns give back the deltas that were packed, and refuse columns that do not fit."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from triptych.convert_packed import (
    error_from_proto,
    error_to_proto,
    pack_deltas,
    unpack_deltas,
)
from triptych.errors import InvalidRequestError, OverloadedError, VocabularyNeededError
from triptych.logprobs import Logprobs, pack_logprobs
from triptych.v1 import generate_pb2
from triptych.wire import ChoiceDelta, GenerateDelta

token_ids = st.integers(0, 2**31 - 1)
candidates = st.tuples(
    token_ids,
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(1, 2**31 - 1),
)
positions = st.lists(candidates, max_size=4)


@st.composite
def choices(draw: st.DrawFn) -> ChoiceDelta:
    ids = draw(st.lists(token_ids, max_size=4))
    scores = st.lists(positions, min_size=len(ids), max_size=len(ids)).map(pack_logprobs)
    return ChoiceDelta(
        index=draw(st.integers(0, 63)),
        token_ids=ids,
        logprobs=draw(st.none() | scores),
        finish_reason=draw(st.sampled_from([None, "stop", "length", "abort"])),
        stop_reason=draw(st.none() | token_ids | st.text(max_size=4)),
    )


deltas = st.builds(
    GenerateDelta,
    request_id=st.just("r"),
    choices=st.lists(choices(), max_size=3),
    prompt_logprobs=st.none() | st.lists(positions, max_size=3).map(pack_logprobs),
    cached_tokens=st.integers(0, 8192),
)


@given(st.lists(st.tuples(st.integers(0, 2**63), deltas), max_size=5))
def test_deltas_survive_packing(keyed: list[tuple[int, GenerateDelta]]) -> None:
    encoded = pack_deltas(keyed).SerializeToString()
    message = generate_pb2.PackedDeltas.FromString(encoded)
    assert unpack_deltas(message, lambda _: "r") == keyed


COLUMNS: dict[str, list[Any]] = {
    "keys": [1, 2],
    "num_choices": [1, 1],
    "choice_indexes": [0, 0],
    "num_tokens": [1, 2],
    "finish_reasons": [0, 1],
    "are_scored": [True, False],
    "token_ids": [5, 6, 7],
}
SCORES = generate_pb2.Logprobs(counts=[1], token_ids=[5], logprobs=[-1.0], ranks=[1])


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("change", ["short", "long"])
def test_columns_that_do_not_fit_are_refused(name: str, change: str) -> None:
    columns: dict[str, Any] = COLUMNS | {
        name: COLUMNS[name][:-1] if change == "short" else [*COLUMNS[name], 1]
    }
    message = generate_pb2.PackedDeltas(**columns, logprobs=SCORES)
    with pytest.raises(InvalidRequestError, match="do not fit"):
        unpack_deltas(message)


def test_logprobs_that_do_not_fit_are_refused() -> None:
    columns: dict[str, Any] = COLUMNS
    with pytest.raises(InvalidRequestError, match=r"logprobs\.counts"):
        unpack_deltas(generate_pb2.PackedDeltas(**columns))
    short = generate_pb2.Logprobs(counts=[2], token_ids=[5], logprobs=[-1.0], ranks=[1])
    with pytest.raises(InvalidRequestError, match="columns do not fit"):
        unpack_deltas(generate_pb2.PackedDeltas(**columns, logprobs=short))


def test_scores_go_with_their_choice() -> None:
    columns: dict[str, Any] = COLUMNS
    (first, second) = unpack_deltas(generate_pb2.PackedDeltas(**columns, logprobs=SCORES), str)
    assert first[1].choices[0].logprobs == Logprobs(
        counts=[1], token_ids=[5], logprobs=[-1.0], ranks=[1]
    )
    assert second[1].choices[0].logprobs is None
    assert [first[1].request_id, second[1].request_id] == ["1", "2"]


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("9 wait, limit is 8", retry_after_s=2.5),
        InvalidRequestError("n is 0", param="n"),
        VocabularyNeededError("needed"),
    ],
)
def test_errors_keep_their_leaf_and_its_facts(error: OverloadedError) -> None:
    key, read = 7, error_from_proto(error_to_proto(7, error))
    assert error_to_proto(7, error).key == key
    assert type(read) is type(error)
    assert (read.message, read.param, read.retry_after_s) == (
        error.message,
        error.param,
        error.retry_after_s,
    )
