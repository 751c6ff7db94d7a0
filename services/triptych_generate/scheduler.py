"""Which sequences run in a step, with how many tokens each, and who gives its blocks back."""

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

from triptych.errors import ContextLengthError
from triptych_generate.blocks import BlockPool
from triptych_generate.prefix_cache import Hit, PrefixCache
from triptych_generate.sequence import Sequence

#: How many sequences may begin before one that came earlier and still lacks blocks.
MAX_OVERTAKEN = 16

_order = attrgetter("order")


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
    """One step: decodes first, then prefill chunks, and the blocks that changed hands for it.

    ``copies`` (from, to) come before anything is written or zeroed.
    """

    slices: list[Slice]
    new_blocks: list[int]
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prefill chunks. Ask before the step has counted its tokens as computed."""
        return sum(part.num_tokens for part in self.slices if not part.is_decode)


@dataclass(slots=True)
class _Step:
    """A plan in the making.

    ``admits``: further sequences may begin. ``blocked``: the first in order that lacks blocks.
    """

    budget: int
    planned: dict[Sequence, int] = field(default_factory=dict)
    new_blocks: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    admits: bool = True
    blocked: Sequence | None = None

    def plan(self) -> Plan:
        slices = [Slice(sequence, num_tokens) for sequence, num_tokens in self.planned.items()]
        slices.sort(key=_is_prefill)
        return Plan(slices, self.new_blocks, self.copies)


class Scheduler:
    """Continuous batching over one block pool: priority first, then first come, first served.

    A step holds every up-to-date sequence's next token, so a long prompt never holds decodes up
    for longer than one budget. Half of what they leave goes to the first in order that has a
    prompt to compute. The other half goes to those of its priority that have less to compute,
    shortest first, so a short prompt need not wait for the long ones before it. What is left is
    given in order, so among prompts of one length the first gets all.

    Blocks of all known tokens are taken when a sequence begins, so only decodes can run out of
    them; then the last sequence in order gives its blocks back and is computed again later.
    Whoever lacks blocks to begin takes them from lower priorities, and is overtaken by at most
    ``MAX_OVERTAKEN`` others. The first in order can have all blocks, and every sequence fits
    alone, so there is always progress.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_step_tokens: int,
        max_num_sequences: int,
        prefix_cache: bool = False,
    ) -> None:
        assert max_step_tokens >= max_num_sequences >= 1
        self.pool = pool
        self.prefixes = PrefixCache(pool, is_on=prefix_cache)
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
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and free its blocks."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._release(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """Let nobody share what ``sequence`` computed: it may hold NaN."""
        self.pool.forget(sequence.block_ids)

    def schedule(self) -> Plan:
        """The next step. Empty only when nothing runs or waits."""
        step = _Step(self.max_step_tokens)
        self._plan_decodes(step)
        self._plan_prefills(step)
        return step.plan()

    def advance(self, plan: Plan) -> None:
        """Note that ``plan`` was computed; call it before new tokens are appended."""
        for part in plan.slices:
            part.sequence.num_computed += part.num_tokens
            self.prefixes.publish(part.sequence)

    def check(self) -> None:
        """Assert that every block is accounted for and that no waiting sequence has any."""
        self.pool.check(sequence.block_ids for sequence in self.running)
        assert not any(sequence.block_ids or sequence.num_computed for sequence in self.waiting)
        for sequences in (self.running, self.waiting):
            assert sequences == sorted(sequences, key=_order)

    def _plan_decodes(self, step: _Step) -> None:
        for sequence in [s for s in self.running if s.num_uncomputed == 1]:
            while sequence.block_ids and not self._grow(sequence, step):
                self._preempt(self.running[-1], step)
                step.admits = False
            if sequence.block_ids:
                step.planned[sequence] = 1
                step.budget -= 1

    def _plan_prefills(self, step: _Step) -> None:
        candidates = self._candidates(step)
        half = -(-step.budget // 2)
        first = next((one for one in candidates if self._serve_first(one, half, step)), None)
        leader = first or step.blocked
        if leader is None:
            return
        length = _length(leader)
        peers = [one for one in candidates if one.priority == leader.priority]
        shorter = sorted((one for one in peers if _length(one) < length), key=_length)
        for sequence in [*shorter, *candidates]:
            if not step.budget:
                return
            self._serve(sequence, step.budget, step)

    def _candidates(self, step: _Step) -> list[Sequence]:
        """Who has a prompt to compute, in order."""
        if not step.budget:
            return []
        candidates = [one for one in self.running if one not in step.planned]
        if step.admits and self.waiting and (self._has_slot or self._may_displace()):
            candidates += self.waiting
            candidates.sort(key=_order)
        return candidates

    def _serve_first(self, sequence: Sequence, most: int, step: _Step) -> bool:
        """``_serve`` in order. Behind one that lacks blocks nobody begins for this reason."""
        is_held = step.blocked is not None and not sequence.block_ids
        return not is_held and self._serve(sequence, most, step)

    def _serve(self, sequence: Sequence, most: int, step: _Step) -> bool:
        """Plan up to ``most`` tokens of a prompt; False when it has none left or cannot begin."""
        if not sequence.block_ids and not self._begin(sequence, step):
            return False
        planned = step.planned.get(sequence, 0)
        num_tokens = min(sequence.num_uncomputed - planned, most)
        if num_tokens:
            step.planned[sequence] = planned + num_tokens
            step.budget -= num_tokens
        return num_tokens > 0

    def _begin(self, sequence: Sequence, step: _Step) -> bool:
        """Let a waiting sequence run with blocks for all its tokens, if there are enough."""
        blocked = step.blocked
        if not step.admits or (blocked is not None and blocked.priority != sequence.priority):
            return False
        if sequence.awaits_scores:
            return False
        hit = self.prefixes.find(sequence)
        awaited = self.prefixes.awaited(hit)
        if awaited is not None and awaited.priority <= sequence.priority:
            return False
        if not (self._fits(sequence, hit) or self._displace(sequence, hit, step)):
            self._block(sequence, step)
            return False
        if blocked is not None:
            blocked.num_overtaken += 1
            step.admits = blocked.num_overtaken < MAX_OVERTAKEN
        self._take_blocks(sequence, hit, step)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_order)
        return True

    def _block(self, sequence: Sequence, step: _Step) -> None:
        """``sequence`` lacks blocks or a place, so nobody else begins, or only a few before it."""
        may_pass = step.blocked is None and sequence.num_overtaken < MAX_OVERTAKEN
        step.admits = may_pass and self._has_slot
        step.blocked = step.blocked or sequence

    def _take_blocks(self, sequence: Sequence, hit: Hit, step: _Step) -> None:
        num_new = self._num_new(sequence, hit)
        self.pool.share(hit.shared)
        after = hit.shared[-1] if hit.shared else None
        taken = self.pool.take(num_new, after=after)
        if hit.copied is None:
            step.new_blocks += taken
        else:
            step.copies.append((hit.copied, taken[0]))
            step.new_blocks += taken[1:]
        sequence.block_ids = [*hit.shared, *taken]
        self.prefixes.begin(sequence, hit)

    @property
    def _has_slot(self) -> bool:
        return len(self.running) < self.max_num_sequences

    def _num_new(self, sequence: Sequence, hit: Hit) -> int:
        return self.pool.blocks_for(len(sequence.token_ids)) - len(hit.shared)

    def _fits(self, sequence: Sequence, hit: Hit) -> bool:
        free = self.pool.num_free_beside(hit.shared)
        return self._has_slot and self._num_new(sequence, hit) <= free

    def _may_displace(self) -> bool:
        return self.waiting[0].priority < self.running[-1].priority

    def _displace(self, sequence: Sequence, hit: Hit, step: _Step) -> bool:
        """Make room for ``sequence`` at the cost of lower priorities, if that is enough."""
        lower = [one for one in self.running if one.priority > sequence.priority]
        gain = sum(len(one.block_ids) for one in lower)
        if gain + self.pool.num_free_beside(hit.shared) < self._num_new(sequence, hit):
            return False
        while lower and not self._fits(sequence, hit):
            self._preempt(lower.pop(), step)
        return self._fits(sequence, hit)

    def _grow(self, sequence: Sequence, step: _Step) -> bool:
        """Give ``sequence`` the block of its newest token; False when there is none."""
        if len(sequence.block_ids) * self.pool.block_size >= len(sequence.token_ids):
            return True
        if not self.pool.num_free:
            return False
        taken = self.pool.take(1, after=sequence.block_ids[-1])
        sequence.block_ids += taken
        step.new_blocks += taken
        return True

    def _preempt(self, sequence: Sequence, step: _Step) -> None:
        # A block that it got in this very step may become the target of a copy.
        step.new_blocks = [one for one in step.new_blocks if one not in sequence.block_ids]
        self.running.remove(sequence)
        self._release(sequence)
        self._wait(sequence)
        self.num_preemptions += 1
        step.budget += step.planned.pop(sequence, 0)

    def _wait(self, sequence: Sequence) -> None:
        self.prefixes.name_blocks(sequence)
        sequence.num_expected = self.prefixes.find(sequence).num_tokens
        insort(self.waiting, sequence, key=_order)

    def _release(self, sequence: Sequence) -> None:
        self.prefixes.leave(sequence)
        self.pool.give_back(sequence.block_ids)
        sequence.block_ids = []


def _is_prefill(part: Slice) -> bool:
    return not part.is_decode


def _length(sequence: Sequence) -> int:
    """Tokens to compute, as far as that is known before it begins."""
    return sequence.num_uncomputed - sequence.num_expected
