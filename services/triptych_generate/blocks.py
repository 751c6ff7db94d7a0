"""The KV block pool: which blocks are free, how many sequences use the others, what is cached."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from triptych_generate.cached_blocks import CachedBlocks
from triptych_generate.free_runs import FreeRuns


class OutOfBlocksError(Exception):
    """The pool has fewer free blocks than were asked for."""


class BlockPool:
    """Blocks ``0 … num_blocks - 1``: in use, idle (cached, used by nobody), or free.

    None is set aside for padding: the cache has one more block, which padding rows may store to.
    Idle blocks count as free: they are evicted, longest idle first, when blocks are taken.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cached = CachedBlocks()
        self.num_evictions = 0
        self._unused = FreeRuns(num_blocks)
        self._num_users = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return self._unused.num_free + self.cached.num_idle

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when one sequence has all blocks."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_free_beside(self, block_ids: Iterable[int]) -> int:
        """Free blocks once ``block_ids``, all cached, are in use."""
        return self.num_free - sum(map(self.cached.is_idle, block_ids))

    def take(self, num_blocks: int, *, after: int | None = None) -> list[int]:
        """``num_blocks`` free blocks, now the caller's; behind ``after`` if those are free.

        Raises:
            OutOfBlocksError: fewer are free; none is taken.
        """
        if num_blocks > self.num_free:
            raise OutOfBlocksError
        for _ in range(num_blocks - self._unused.num_free):
            self._unused.add(self.cached.evict())
            self.num_evictions += 1
        taken = self._unused.take(num_blocks, after)
        for block in taken:
            self._num_users[block] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Use cached blocks, besides those who use them already."""
        for block in block_ids:
            self.cached.wake(block)
            self._num_users[block] += 1

    def give_back(self, block_ids: Sequence[int]) -> None:
        """End one use of each block. Those of a sequence's start are evicted after the others."""
        for block in reversed(block_ids):
            self._num_users[block] -= 1
            if not self._num_users[block]:
                self._leave(block)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Let nobody find these blocks any more."""
        for block in block_ids:
            self.cached.remove(block)

    def check(self, used: Iterable[Sequence[int]]) -> None:
        """Assert that each block is free, idle, or in use as often as ``used`` tables hold it."""
        num_users = Counter(chain.from_iterable(used))
        assert dict(num_users) == {b: n for b, n in enumerate(self._num_users) if n}
        blocks = sorted([*self._unused.check(), *self.cached.check(), *num_users])
        assert blocks == list(range(self.num_blocks)), "a KV block is lost or has two states"

    def _leave(self, block: int) -> None:
        if block in self.cached:
            self.cached.rest(block)
        else:
            self._unused.add(block)
