"""When another attempt is made, and how long after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.client.retries import Retries
from triptych.errors import (
    LEAVES,
    OverloadedError,
    RateLimitError,
    TriptychError,
    UnavailableError,
)

AGAIN = (OverloadedError, RateLimitError, UnavailableError)


@given(st.floats(0, 30), st.sampled_from(AGAIN))
def test_wait_is_what_the_server_says_and_little_more(
    retry_after_s: float, kind: type[TriptychError]
) -> None:
    wait_s = Retries().begin().wait_s(kind("no", retry_after_s=retry_after_s))
    assert retry_after_s <= wait_s <= retry_after_s * 1.25


@pytest.mark.parametrize("kind", AGAIN)
def test_waits_grow_and_end_at_the_limit(kind: type[TriptychError]) -> None:
    attempts = Retries(limit=6).begin()
    waits = [attempts.wait_s(kind("no")) for _ in range(6)]
    for wait_s, least in zip(waits, [0.5, 1, 2, 4, 8, 8], strict=True):
        assert least <= wait_s <= least * 1.25
    error = kind("no")
    with pytest.raises(kind) as raised:
        attempts.wait_s(error)
    assert raised.value is error


@pytest.mark.parametrize("kind", [leaf for leaf in LEAVES if leaf not in AGAIN])
def test_other_errors_are_raised_at_once(kind: type[TriptychError]) -> None:
    with pytest.raises(kind):
        Retries().begin().wait_s(kind("no", retry_after_s=0))


def test_server_that_wants_too_much_patience_is_not_asked_again() -> None:
    with pytest.raises(RateLimitError):
        Retries(max_wait_s=5).begin().wait_s(RateLimitError("no", retry_after_s=6))
