"""Stop strings: where one is complete, and how much text may still become one."""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """``stop`` begins at ``start`` of the searched text."""

    start: int
    stop: str


def find_stop(text: str, num_new: int, stops: Sequence[str]) -> StopMatch | None:
    """The earliest stop string in ``text`` that ends in its last ``num_new`` characters.

    Of two that begin at the same place the shorter one counts: it was complete first.
    """
    matches = []
    for stop in stops:
        start = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
        if start >= 0:
            matches.append((start, len(stop), stop))
    if not matches:
        return None
    start, _, stop = min(matches)
    return StopMatch(start, stop)


def held_back_len(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that is the start of a stop string, but not all."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
