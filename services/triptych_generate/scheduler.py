"""Which sequences run in a step, with how many tokens each, and who gives its blocks back."""

from dataclasses import dataclass

from triptych.errors import ContextLengthError
from triptych_generate.blocks import BlockPool
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """The next ``num_tokens`` uncomputed tokens of ``sequence``."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_decode(self) -> bool:
        """One token after computed ones. Anything else is a prefill chunk."""
        return self.num_tokens == 1 and self.sequence.num_computed > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: decodes first, then prefill chunks, and the blocks that changed hands for it."""

    slices: list[Slice]
    new_blocks: list[int]

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prefill chunks. Ask before the step has counted its tokens as computed."""
        return sum(part.num_tokens for part in self.slices if not part.is_decode)


class Scheduler:
    """First come, first served within a priority; continuous batching over one block pool.

    A step holds every up-to-date sequence's next token, then prefill chunks up to the token
    budget, so a long prompt never holds decodes up for longer than one budget. Blocks of all known
    tokens are taken at admission, so only decodes can run out of them; then the last sequence in
    order gives its blocks back and is computed again later. The first in order can have all
    blocks, and every sequence fits alone, so there is always progress.
    """

    def __init__(self, pool: BlockPool, *, max_step_tokens: int, max_num_sequences: int) -> None:
        assert max_step_tokens >= max_num_sequences >= 1
        self.pool = pool
        self.max_step_tokens = max_step_tokens
        self.max_num_sequences = max_num_sequences
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue ``sequence``.

        Raises:
            ContextLengthError: it would not fit even alone.
        """
        if sequence.max_len > self.pool.capacity_tokens:
            raise ContextLengthError(
                f"prompt and output may take {sequence.max_len:,} tokens, "
                f"limit is {self.pool.capacity_tokens:,} (all KV blocks)",
                param="token_ids",
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and free its blocks."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._release(sequence)

    def schedule(self) -> Plan:
        """The next step. Empty only when nothing runs or waits."""
        self.running.sort(key=_order)
        planned: dict[Sequence, int] = {}
        new_blocks: list[int] = []
        has_preempted = self._plan_decodes(planned, new_blocks)
        self._plan_prefills(planned)
        if not has_preempted:
            self._admit(planned, new_blocks)
        slices = [Slice(sequence, num_tokens) for sequence, num_tokens in planned.items()]
        slices.sort(key=_is_prefill)
        return Plan(slices, new_blocks)

    def check(self) -> None:
        """Assert that every block is accounted for and that no waiting sequence has any."""
        self.pool.check(sequence.block_ids for sequence in self.running)
        assert not any(sequence.block_ids or sequence.num_computed for sequence in self.waiting)

    def _plan_decodes(self, planned: dict[Sequence, int], new_blocks: list[int]) -> bool:
        has_preempted = False
        for sequence in [s for s in self.running if s.num_uncomputed == 1]:
            while sequence in self.running and not self._grow(sequence, new_blocks):
                victim = self.running[-1]
                self._preempt(victim)
                planned.pop(victim, None)
                has_preempted = True
            if sequence in self.running:
                planned[sequence] = 1
        return has_preempted

    def _plan_prefills(self, planned: dict[Sequence, int]) -> None:
        for sequence in [s for s in self.running if s.num_uncomputed > 1]:
            num_tokens = min(sequence.num_uncomputed, self.max_step_tokens - sum(planned.values()))
            if num_tokens > 0:
                planned[sequence] = num_tokens

    def _admit(self, planned: dict[Sequence, int], new_blocks: list[int]) -> None:
        self.waiting.sort(key=_order)
        budget = self.max_step_tokens - sum(planned.values())
        while self.waiting and budget > 0 and len(self.running) < self.max_num_sequences:
            sequence = self.waiting[0]
            num_blocks = self.pool.blocks_for(len(sequence.token_ids))
            if num_blocks > self.pool.num_free:
                return
            sequence.block_ids = self.pool.take(num_blocks)
            new_blocks += sequence.block_ids
            self.running.append(self.waiting.pop(0))
            planned[sequence] = min(sequence.num_uncomputed, budget)
            budget -= planned[sequence]

    def _grow(self, sequence: Sequence, new_blocks: list[int]) -> bool:
        """Give ``sequence`` the block of its newest token; False when there is none."""
        if len(sequence.block_ids) >= self.pool.blocks_for(len(sequence.token_ids)):
            return True
        if not self.pool.num_free:
            return False
        taken = self.pool.take(1, after=sequence.block_ids[-1])
        sequence.block_ids += taken
        new_blocks += taken
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.append(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed = 0


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def _is_prefill(part: Slice) -> bool:
    return not part.is_decode
