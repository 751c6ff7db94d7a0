"""Which replica a prompt goes to: affinity, bounds, and what moves when replicas come and go."""

import math
from collections import Counter
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


@dataclass(frozen=True)
class Place:
    address: str
    load: int = 0
    capacity: int = 1
    is_full: bool = False


def places(count: int) -> list[Place]:
    return [Place(f"10.0.0.{index}:9002") for index in range(count)]


def keys(count: int) -> list[bytes]:
    return [index.to_bytes(16) for index in range(count)]


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


def test_idle_replicas_get_equal_shares_and_a_prefix_always_the_same_one() -> None:
    fleet, asked = places(5), keys(5000)
    chosen = [by_prefix(fleet, key) for key in asked]
    assert chosen == [by_prefix(fleet[::-1], key) for key in asked]
    counts = Counter(each.address for each in chosen)
    assert len(counts) == 5
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_shares_follow_the_capacity() -> None:
    fleet = [Place("a", capacity=100), Place("b", capacity=300)]
    counts = Counter(by_prefix(fleet, key).address for key in keys(4000))
    assert 2.7 < counts["b"] / counts["a"] < 3.3


def test_replica_that_goes_moves_only_its_own_prefixes() -> None:
    fleet, asked = places(6), keys(1000)
    before = {key: by_prefix(fleet, key) for key in asked}
    gone, rest = fleet[2], [*fleet[:2], *fleet[3:]]
    for key in asked:
        if before[key] != gone:
            assert by_prefix(rest, key) == before[key]


loads = st.lists(
    st.builds(
        Place,
        st.uuids().map(str),
        st.integers(0, 200),
        st.integers(1, 1000),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(fleet=loads, key=st.binary(min_size=16, max_size=16))
def test_bound_is_never_exceeded(fleet: list[Place], key: bytes) -> None:
    chosen = by_prefix(fleet, key)
    total = 1 + sum(each.load for each in fleet)
    share = total * chosen.capacity / sum(each.capacity for each in fleet)
    assert chosen.load + 1 <= max(MIN_BOUND, math.ceil(MAX_SHARE * share))


def test_full_replica_is_passed_over_unless_all_are() -> None:
    first = by_prefix(places(3), b"k" * 16).address

    def full(*names: str) -> list[Place]:
        return [Place(each.address, is_full=each.address in names) for each in places(3)]

    assert by_prefix(full(first), b"k" * 16).address != first
    assert by_prefix(full(*(each.address for each in places(3))), b"k" * 16).address == first


def test_hot_prefix_spills_to_the_same_next_replica() -> None:
    key = b"k" * 16
    first = by_prefix(places(4), key).address
    hot = [Place(each.address, load=50 if each.address == first else 1) for each in places(4)]
    second = by_prefix(hot, key).address
    assert second != first
    assert second == by_prefix([each for each in hot if each.address != first], key).address


@given(fleet=loads)
def test_least_loaded_has_the_least_load_for_its_capacity(fleet: list[Place]) -> None:
    chosen = least_loaded(fleet)
    assert chosen.load / chosen.capacity == min(each.load / each.capacity for each in fleet)


def test_ties_are_spread() -> None:
    assert {least_loaded(places(3)).address for _ in range(200)} == {
        each.address for each in places(3)
    }
