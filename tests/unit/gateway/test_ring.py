"""The order of replicas for a key: shares, and what moves when replicas come and go."""

import hashlib
from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from triptych_gateway.ring import Ring


@dataclass(frozen=True)
class Place:
    address: str
    capacity: int = 1


def places(count: int) -> list[Place]:
    return [Place(f"10.0.0.{index}:9002") for index in range(count)]


def keys(count: int) -> list[bytes]:
    return [hashlib.sha256(index.to_bytes(4)).digest()[:16] for index in range(count)]


def firsts(members: list[Place], count: int) -> list[str]:
    ring = Ring(members)
    return [next(ring.order(key)).address for key in keys(count)]


names = st.sets(st.uuids().map(str), min_size=1, max_size=40)
hashes = st.binary(min_size=16, max_size=16)
#: Of one kind: points do not depend on who has the most.
alike = names.map(lambda each: [Place(name, capacity=1000) for name in each])


def test_nobody_has_no_order() -> None:
    empty: Ring[Place] = Ring([])
    assert list(empty.order(b"k" * 16)) == []


@given(
    members=st.lists(
        st.builds(Place, st.uuids().map(str), st.integers(1, 10_000)),
        max_size=20,
        unique_by=lambda each: each.address,
    ),
    key=hashes,
)
def test_order_is_of_all_members_whatever_their_order_was(members: list[Place], key: bytes) -> None:
    order = list(Ring(members).order(key))
    assert sorted(each.address for each in order) == sorted(each.address for each in members)
    assert order == list(Ring(members[::-1]).order(key))


@given(members=alike, key=hashes, data=st.data())
def test_order_of_the_others_stays_when_one_goes(
    members: list[Place], key: bytes, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(members))
    order = list(Ring(members).order(key))
    rest = [each for each in members if each != gone]
    assert list(Ring(rest).order(key)) == [each for each in order if each != gone]


def test_shares_are_alike() -> None:
    counts = Counter(firsts(places(5), 5000))
    assert len(counts) == 5
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_one_that_comes_takes_its_share_from_all() -> None:
    before, after = firsts(places(9), 4000), firsts(places(10), 4000)
    new = places(10)[-1].address
    moved = [old for old, now in zip(before, after, strict=True) if old != now]
    assert all(now in (old, new) for old, now in zip(before, after, strict=True))
    assert 0.07 < len(moved) / 4000 < 0.13
    assert len(set(moved)) == 9


def test_shares_follow_the_capacity() -> None:
    counts = Counter(firsts([Place("a", capacity=100), Place("b", capacity=300)], 4000))
    assert 2.5 < counts["b"] / counts["a"] < 3.5


def test_restart_with_a_little_more_memory_moves_nothing() -> None:
    restarted = [Place(each.address, 1000 + (each == places(6)[2])) for each in places(6)]
    assert firsts(restarted, 500) == firsts([Place(each.address, 1000) for each in places(6)], 500)
