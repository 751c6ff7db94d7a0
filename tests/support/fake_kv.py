"""KV memory that remembers, per cell, which tokens led to it: it shows every wrong sharing."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from triptych_generate.blocks import BlockPool
from triptych_generate.scheduler import Plan, Scheduler
from triptych_generate.sequence import Sequence

_Cell = tuple[str | None, tuple[int, ...]]


class FakeKv:
    """Cells that hold the salt and all ids up to theirs, as a model's keys and values do."""

    def __init__(self, pool: BlockPool) -> None:
        self._size = pool.block_size
        self._blocks: list[list[_Cell | None]] = [[None] * self._size] * pool.num_blocks
        self.num_computed = 0

    def run(self, plan: Plan, running: Iterable[Sequence]) -> None:
        """Compute ``plan``: what is read must be right, what is written must be one's own."""
        copied = [self._blocks[source] for source, _ in plan.copies]
        for (_, target), cells in zip(plan.copies, copied, strict=True):
            self._blocks[target] = cells
        for block in plan.new_blocks:
            self._blocks[block] = [None] * self._size
        users = Counter(chain.from_iterable(sequence.block_ids for sequence in running))
        for part in plan.slices:
            self._compute(part.sequence, part.num_tokens, users)

    def _compute(self, sequence: Sequence, num_tokens: int, users: Counter[int]) -> None:
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        for position in range(start):
            assert self._cell(sequence, position) == _expected(sequence, position), "wrong hit"
        for position in range(start, end):
            block, offset = sequence.block_ids[position // self._size], position % self._size
            assert users[block] == 1, "a shared block is written"
            cells = list(self._blocks[block])
            cells[offset] = _expected(sequence, position)
            self._blocks[block] = cells
        self.num_computed += num_tokens

    def _cell(self, sequence: Sequence, position: int) -> _Cell | None:
        return self._blocks[sequence.block_ids[position // self._size]][position % self._size]


def step(scheduler: Scheduler, kv: FakeKv) -> tuple[Plan, list[Sequence]]:
    """A whole step with made-up tokens, as the engine makes it: the plan, and who finished.

    The tokens depend on the ids before them alone, so equal prompts have equal outputs.
    """
    plan = scheduler.schedule()
    scheduler.check()
    kv.run(plan, scheduler.running)
    scheduler.advance(plan)
    finished: list[Sequence] = []
    for part in plan.slices:
        sequence = part.sequence
        if not sequence.num_uncomputed:
            if not sequence.is_full:
                sequence.token_ids.append(sum(sequence.token_ids) % 3)
            if sequence.is_full:
                finished.append(sequence)
                scheduler.remove(sequence)
    scheduler.check()
    return plan, finished


def _expected(sequence: Sequence, position: int) -> _Cell:
    return sequence.cache_salt, tuple(sequence.token_ids[: position + 1])
