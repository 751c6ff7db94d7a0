"""Which replica a prompt goes to: affinity, bounds, and what moves when replicas come and go."""

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from triptych.wire import GenerateRequest, SamplingParams
from triptych_gateway.balance import (
    BLOCK_SIZE,
    MAX_BLOCKS,
    MAX_SHARE,
    MIN_BOUND,
    by_prefix,
    least_loaded,
    prefix_key,
)
from triptych_gateway.ring import Ring


@dataclass(frozen=True)
class Place:
    address: str
    load: int = 0
    capacity: int = 1
    is_full: bool = False


def places(count: int) -> list[Place]:
    return [Place(f"10.0.0.{index}:9002") for index in range(count)]


def request(token_ids: list[int], salt: str | None = None) -> GenerateRequest:
    return GenerateRequest(token_ids=token_ids, sampling_params=SamplingParams(), cache_salt=salt)


def test_key_is_of_whole_blocks_and_the_salt_alone() -> None:
    length = MAX_BLOCKS * BLOCK_SIZE
    ids = list(range(length))
    key = prefix_key(request(ids))
    assert key == prefix_key(request([*ids, 7, 8]))
    assert prefix_key(request(ids[: BLOCK_SIZE - 1])) is None
    assert prefix_key(request(ids[:BLOCK_SIZE])) == prefix_key(request([*ids[:BLOCK_SIZE], 9]))
    others = [[1, *ids[1:]], [*ids[: length - 1], 1]]
    found = {prefix_key(request(each)) for each in others}
    salts = {prefix_key(request(ids, salt)) for salt in ("", "a")}
    assert len({key, *found, *salts}) == 5


def test_key_of_a_resumed_request_is_its_prompts() -> None:
    ids = list(range(BLOCK_SIZE))
    resumed = GenerateRequest(
        token_ids=[*ids[:-1], 5, 6], sampling_params=SamplingParams(), resume_from=2
    )
    assert prefix_key(resumed) is prefix_key(request(ids[:-1])) is None


def routed(fleet: list[Place], key: bytes) -> Place:
    return by_prefix(Ring(fleet), frozenset(fleet), key)


loads = st.lists(
    st.builds(
        Place,
        st.uuids().map(str),
        st.integers(0, 200),
        st.integers(1, 1000),
        st.booleans(),
    ),
    min_size=1,
    max_size=24,
    unique_by=lambda each: each.address,
)
hashes = st.binary(min_size=16, max_size=16)


@given(fleet=loads, key=hashes)
def test_bound_is_never_exceeded(fleet: list[Place], key: bytes) -> None:
    chosen = routed(fleet, key)
    total = 1 + sum(each.load for each in fleet)
    share = total * chosen.capacity / sum(each.capacity for each in fleet)
    assert chosen.load + 1 <= max(MIN_BOUND, math.ceil(MAX_SHARE * share))


@given(names=st.sets(st.uuids().map(str), min_size=2, max_size=30), key=hashes)
def test_prefix_stays_at_its_replica_and_moves_with_it_alone(names: set[str], key: bytes) -> None:
    fleet = [Place(each) for each in names]
    chosen = routed(fleet, key)
    assert chosen == routed(fleet[::-1], key)
    for gone in fleet:
        rest = [each for each in fleet if each != gone]
        listed = by_prefix(Ring(fleet), frozenset(rest), key)
        assert listed == routed(rest, key)
        if gone != chosen:
            assert listed == chosen


@given(names=st.sets(st.uuids().map(str), min_size=3, max_size=15), key=hashes)
def test_hot_prefix_spills_to_the_next_in_its_order(names: set[str], key: bytes) -> None:
    order = list(Ring([Place(each) for each in names]).order(key))
    hot = {order[0].address: 50}
    fleet = [Place(each, load=hot.get(each, 1)) for each in names]
    assert routed(fleet, key).address == order[1].address


def test_full_replica_is_passed_over_unless_all_are() -> None:
    first = routed(places(3), b"k" * 16).address

    def full(*names: str) -> list[Place]:
        return [Place(each.address, is_full=each.address in names) for each in places(3)]

    assert routed(full(first), b"k" * 16).address != first
    assert routed(full(*(each.address for each in places(3))), b"k" * 16).address == first


@given(fleet=loads)
def test_least_loaded_has_the_least_load_for_its_capacity(fleet: list[Place]) -> None:
    chosen = least_loaded(fleet)
    assert chosen.load / chosen.capacity == min(each.load / each.capacity for each in fleet)


def test_ties_are_spread() -> None:
    assert {least_loaded(places(3)).address for _ in range(200)} == {
        each.address for each in places(3)
    }
