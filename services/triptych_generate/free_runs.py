"""Free KV blocks as runs of neighbours, so that a sequence's blocks lie next to one another."""

from bisect import bisect_left
from itertools import pairwise


class FreeRuns:
    """Which of the blocks ``0 … num_blocks - 1`` are free.

    A sequence gets neighbouring blocks where it can, and room to grow behind them, because
    attention takes a run of blocks in one product.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks
        self._starts = [0]
        self._lengths = [num_blocks]

    def take(self, num_blocks: int, after: int | None) -> list[int]:
        """``num_blocks`` of the free ones, of which there must be as many; behind ``after`` first.

        A run that follows a block in use is cut in its middle, so that both can grow.
        """
        taken: list[int] = []
        last = after
        while len(taken) < num_blocks:
            taken += self._take_run(num_blocks - len(taken), last)
            last = taken[-1]
        return taken

    def add(self, block: int) -> None:
        """Free one block."""
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

    def check(self) -> list[int]:
        """The free blocks; asserts that the runs are apart and counted."""
        runs = list(zip(self._starts, self._lengths, strict=True))
        for (start, length), (following, _) in pairwise(runs):
            assert start + length < following, "free runs overlap or touch"
        free = [block for start, length in runs for block in range(start, start + length)]
        assert len(free) == self.num_free
        return free

    def _take_run(self, most: int, after: int | None) -> list[int]:
        """1 to ``most`` neighbouring blocks: behind ``after``, else from the longest free run."""
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
