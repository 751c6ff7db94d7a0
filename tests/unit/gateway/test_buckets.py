"""A bucket against a model that adds up, instant by instant."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych_gateway.buckets import Bucket

#: Seconds that pass, then units that are taken.
MOVES = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 500)), max_size=30)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(per_minute=st.integers(1, 10_000), moves=MOVES)
def test_bucket_holds_what_came_in_a_minute_less_what_was_taken(
    per_minute: int, moves: list[tuple[int, int]]
) -> None:
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    level = Fraction(per_minute)
    for seconds, units in moves:
        clock.now += seconds
        for _ in range(seconds):
            level = min(level + Fraction(per_minute, 60), Fraction(per_minute))
        assert bucket.level == pytest.approx(float(level), abs=1e-6)
        bucket.take(units)
        level -= units


@given(per_minute=st.integers(1, 10_000), units=st.integers(0, 100_000))
def test_wait_ends_when_one_unit_is_there(per_minute: int, units: int) -> None:
    clock = Clock()
    bucket = Bucket(per_minute, clock)
    bucket.take(units)
    clock.now += bucket.wait_s
    assert bucket.level >= 1 - 1e-6
    clock.now += bucket.full_in_s
    assert bucket.level == pytest.approx(per_minute)
