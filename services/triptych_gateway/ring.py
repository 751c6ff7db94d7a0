"""An order of replicas for every key, the same at every gateway, without asking all replicas.

Multi-probe consistent hashing (Appleton and O'Reilly 2015): replicas have points on a circle, a key
has several probes, and a replica is as near to a key as the nearest of its points behind one of
the probes. How near it is depends on no other replica, so one that comes or goes moves only keys of
its own, and the order of the others stays as it was.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace
from typing import Generic, Protocol, TypeVar

#: Points of the replica with the most capacity; others have as many less as they have less.
NUM_POINTS = 32
NUM_PROBES = 8
#: A point is a place on the circle, and behind it the number of its replica.
_PLACE_BYTES, _NUMBER_BITS = 5, 20
_PLACE_MASK = 2 ** (8 * _PLACE_BYTES) - 1
_NUMBER_MASK = 2**_NUMBER_BITS - 1
_CIRCLE = (_PLACE_MASK + 1) << _NUMBER_BITS


class Member(Protocol):
    """A replica by its address; ``capacity`` is what its share of the keys is measured by."""

    @property
    def address(self) -> str: ...

    @property
    def capacity(self) -> int: ...


_MemberT = TypeVar("_MemberT", bound=Member)


class Ring(Generic[_MemberT]):
    """The order of ``members`` for any key. Capacities are those that they have now."""

    def __init__(self, members: Iterable[_MemberT]) -> None:
        self._members = sorted(members, key=lambda each: each.address)
        most = max((each.capacity for each in self._members), default=1)
        self._points = sorted(
            place << _NUMBER_BITS | number
            for number, member in enumerate(self._members)
            for place in _places(member.address)[: _num_points(member.capacity / most)]
        )

    def order(self, key: bytes) -> Iterator[_MemberT]:
        """All members, the nearest to ``key`` (16 bytes or more, a hash) first."""
        if not self._members:
            return
        nearest = [self._from(probe) for probe in _probes(key)]
        heapify(nearest)
        seen: set[int] = set()
        while len(seen) < len(self._members):
            _, at, probe = nearest[0]
            number = self._points[at] & _NUMBER_MASK
            if number not in seen:
                seen.add(number)
                yield self._members[number]
            heapreplace(nearest, self._next(at, probe))

    def _from(self, probe: int) -> tuple[int, int, int]:
        """The first point at or behind ``probe``: how far it is, its index, and the probe."""
        at = bisect_left(self._points, probe)
        return self._point(at if at < len(self._points) else 0, probe)

    def _next(self, at: int, probe: int) -> tuple[int, int, int]:
        return self._point(at + 1 if at + 1 < len(self._points) else 0, probe)

    def _point(self, at: int, probe: int) -> tuple[int, int, int]:
        return (self._points[at] - probe) % _CIRCLE, at, probe


def _num_points(share: float) -> int:
    return max(1, round(NUM_POINTS * share))


def _places(address: str) -> list[int]:
    """Where the points of ``address`` are; a replica with fewer has the first of them."""
    digest = hashlib.shake_128(address.encode()).digest(NUM_POINTS * _PLACE_BYTES)
    return [
        int.from_bytes(digest[at : at + _PLACE_BYTES]) for at in range(0, len(digest), _PLACE_BYTES)
    ]


def _probes(key: bytes) -> list[int]:
    """Double hashing: a start and a step from the key's two halves."""
    start, step = int.from_bytes(key[:8]), int.from_bytes(key[8:16]) | 1
    return [((start + turn * step) & _PLACE_MASK) << _NUMBER_BITS for turn in range(NUM_PROBES)]
