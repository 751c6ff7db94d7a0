"""The KV block pool: which blocks are free and who owns the others."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise


class OutOfBlocksError(Exception):
    """The pool has fewer free blocks than were asked for."""


class BlockPool:
    """Blocks ``0 … num_blocks - 1``, each free or owned by one sequence.

    None is set aside for padding: the cache has one more block, which padding rows may store to.
    Free blocks are kept as runs. A sequence gets neighbouring blocks where it can, and room to
    grow behind them, because attention takes a run of blocks in one product.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self._starts = [0]
        self._lengths = [num_blocks]

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when one sequence has all blocks."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def take(self, num_blocks: int, *, after: int | None = None) -> list[int]:
        """``num_blocks`` free blocks, now the caller's; behind ``after`` if those are free.

        Raises:
            OutOfBlocksError: fewer are free; none is taken.
        """
        if num_blocks > self.num_free:
            raise OutOfBlocksError
        taken: list[int] = []
        last = after
        while len(taken) < num_blocks:
            taken += self._take_run(num_blocks - len(taken), last)
            last = taken[-1]
        return taken

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Free blocks that one ``take`` or several gave."""
        for block in block_ids:
            self._free_one(block)

    def check(self, owned: Iterable[Sequence[int]]) -> None:
        """Assert that free and ``owned`` blocks together are each usable block exactly once."""
        runs = list(zip(self._starts, self._lengths, strict=True))
        free = [block for start, length in runs for block in range(start, start + length)]
        blocks = sorted([*free, *(block for table in owned for block in table)])
        assert blocks == list(range(self.num_blocks)), "a KV block is lost or owned twice"
        assert len(free) == self.num_free
        for (start, length), (following, _) in pairwise(runs):
            assert start + length < following, "free runs overlap or touch"

    def _take_run(self, most: int, after: int | None) -> list[int]:
        """1 to ``most`` neighbouring blocks: behind ``after``, else from the longest free run.

        A run that follows an owned block is cut in its middle, so that both can grow.
        """
        behind = -1 if after is None else after + 1
        index = bisect_left(self._starts, behind)
        is_behind = self._starts[index : index + 1] == [behind]
        if not is_behind:
            index = max(range(len(self._lengths)), key=self._lengths.__getitem__)
        start, length = self._starts[index], self._lengths[index]
        count = min(most, length)
        first = start if is_behind or start == 0 else start + (length - count) // 2
        pieces = [(start, first - start), (first + count, start + length - first - count)]
        kept = [piece for piece in pieces if piece[1]]
        self._starts[index : index + 1] = [piece[0] for piece in kept]
        self._lengths[index : index + 1] = [piece[1] for piece in kept]
        self.num_free -= count
        return list(range(first, first + count))

    def _free_one(self, block: int) -> None:
        index = bisect_left(self._starts, block)
        joins_next = self._starts[index : index + 1] == [block + 1]
        joins_last = index > 0 and self._starts[index - 1] + self._lengths[index - 1] == block
        self.num_free += 1
        if joins_last:
            self._lengths[index - 1] += 1
            if joins_next:
                self._lengths[index - 1] += self._lengths[index]
                del self._starts[index], self._lengths[index]
        elif joins_next:
            self._starts[index] = block
            self._lengths[index] += 1
        else:
            self._starts.insert(index, block)
            self._lengths.insert(index, 1)
