"""The block pool: every block in one state, neighbours kept together, the longest idle evicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych_generate.blocks import BlockPool, OutOfBlocksError

_BLOCK = 4


def test_pool_gives_each_block_once_and_notices_a_lost_one() -> None:
    pool = BlockPool(3, _BLOCK)
    taken = pool.take(3)
    with pytest.raises(OutOfBlocksError):
        pool.take(1)
    pool.check([taken])
    pool.give_back(taken[:1])
    with pytest.raises(AssertionError):
        pool.check([taken])


def test_sequences_that_grow_in_turn_keep_neighbouring_blocks() -> None:
    pool = BlockPool(64, _BLOCK)
    tables = [pool.take(2) for _ in range(4)]
    for _ in range(5):
        for table in tables:
            table += pool.take(1, after=table[-1])
    for table in tables:
        assert table == list(range(table[0], table[0] + 7))
    pool.check(tables)


def test_longest_idle_block_is_evicted_first_and_a_prefix_after_what_follows_it() -> None:
    pool = BlockPool(4, _BLOCK)
    old, new = pool.take(2), pool.take(2)
    for block, key in zip([*old, *new], (b"0", b"1", b"2", b"3"), strict=True):
        pool.cached.add(block, key)
    pool.give_back(old)
    pool.give_back(new)
    pool.share(old[:1])
    pool.give_back(old[:1])
    evicted = []
    for _ in range(4):
        pool.take(1)
        evicted.append([key for key in (b"0", b"1", b"2", b"3") if pool.cached.find(key) is None])
    assert evicted == [[b"1"], [b"1", b"3"], [b"1", b"2", b"3"], [b"0", b"1", b"2", b"3"]]
    assert pool.num_evictions == 4


def test_block_in_use_is_never_evicted() -> None:
    pool = BlockPool(2, _BLOCK)
    shared, other = pool.take(1), pool.take(1)
    pool.cached.add(shared[0], b"0")
    pool.share(shared)
    pool.give_back(shared)
    pool.give_back(other)
    assert pool.take(1) == other
    with pytest.raises(OutOfBlocksError):
        pool.take(1)


def test_forgotten_block_is_free_and_not_found() -> None:
    pool = BlockPool(1, _BLOCK)
    taken = pool.take(1)
    pool.cached.add(taken[0], b"0")
    pool.forget(taken)
    pool.give_back(taken)
    assert pool.cached.find(b"0") is None
    pool.check([])
    assert pool.take(1) == taken


@given(data=st.data())
def test_pool_accounts_for_every_block_whatever_is_taken_shared_and_freed(
    data: st.DataObject,
) -> None:
    pool = BlockPool(data.draw(st.integers(1, 30)), _BLOCK)
    tables: list[list[int]] = []
    for number in range(data.draw(st.integers(0, 40))):
        wanted = data.draw(st.integers(-1, 6))
        if wanted == -1 and tables:
            tables.append(list(data.draw(st.sampled_from(tables))))
            for block in tables[-1]:
                pool.cached.add(block, b"%d %d" % (number, block))
            pool.share(tables[-1])
        elif wanted <= 0:
            if tables:
                pool.give_back(tables.pop(data.draw(st.integers(0, len(tables) - 1))))
        elif wanted > pool.num_free:
            with pytest.raises(OutOfBlocksError):
                pool.take(wanted)
        else:
            after = tables[-1][-1] if tables and tables[-1] else None
            tables.append(pool.take(wanted, after=after))
            assert len(tables[-1]) == wanted
        pool.check(tables)
