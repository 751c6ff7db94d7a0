"""KV memory and scores that tell which tokens led to them: they show every wrong sharing."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from triptych.logprobs import Logprobs, pack_logprobs
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
    scored = {
        part.sequence: part.sequence.prompt_positions_to_score(part.num_tokens)
        for part in plan.slices
    }
    scheduler.advance(plan)
    for sequence, positions in scored.items():
        _score_prompt(scheduler, sequence, positions)
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


def _score_prompt(scheduler: Scheduler, sequence: Sequence, positions: range) -> None:
    """Score as the engine does; all scores, those from the cache too, must be the position's."""
    if not sequence.scores_prompt:
        return
    sequence.prompt_scores += [_score(sequence, position) for position in positions]
    scheduler.prefixes.keep_scores(sequence)
    known = range(1, sequence.num_scored)
    assert sequence.prompt_scores == [_score(sequence, position) for position in known]
    if sequence.num_computed >= sequence.prompt_len:
        assert sequence.num_scored == sequence.prompt_len


def _score(sequence: Sequence, position: int) -> Logprobs:
    """Made up from all ids up to ``position``; lower ids have the better ranks."""
    own, num_best = sequence.token_ids[position], sequence.params.prompt_logprobs or 0
    value = -float(sum(sequence.token_ids[: position + 1]) % 97)
    best = [token_id for token_id in range(num_best) if token_id != own]
    return pack_logprobs([[(token_id, value, token_id + 1) for token_id in (own, *best)]])


def _expected(sequence: Sequence, position: int) -> _Cell:
    return sequence.cache_salt, tuple(sequence.token_ids[: position + 1])
