"""The scheduler against its rules: any submits, aborts and steps, with accounting after each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triptych.errors import ContextLengthError
from triptych.wire import SamplingParams
from triptych_generate.blocks import BlockPool, OutOfBlocksError
from triptych_generate.scheduler import Plan, Scheduler
from triptych_generate.sequence import Sequence

_BLOCK = 4
_NUM_BLOCKS = 8
_CAPACITY = _NUM_BLOCKS * _BLOCK
_BUDGET = 6
_MAX_RUNNING = 4


def _sequence(key: int, prompt_len: int, max_len: int, priority: int = 0) -> Sequence:
    return Sequence(
        request_key=key,
        choice_index=0,
        token_ids=list(range(prompt_len)),
        prompt_len=prompt_len,
        max_len=max_len,
        params=SamplingParams(),
        seed=0,
        priority=priority,
    )


def _scheduler(**sizes: int) -> Scheduler:
    return Scheduler(
        BlockPool(sizes.get("num_blocks", _NUM_BLOCKS), _BLOCK),
        max_step_tokens=sizes.get("max_step_tokens", _BUDGET),
        max_num_sequences=sizes.get("max_num_sequences", _MAX_RUNNING),
    )


def _apply(scheduler: Scheduler, plan: Plan) -> list[Sequence]:
    """What the engine does after a step, with made-up tokens; the finished sequences."""
    finished: list[Sequence] = []
    for part in plan.slices:
        sequence = part.sequence
        sequence.num_computed += part.num_tokens
        if not sequence.num_uncomputed and not sequence.is_full:
            sequence.token_ids.append(0)
            if sequence.is_full:
                finished.append(sequence)
                scheduler.remove(sequence)
    return finished


class SchedulerMachine(RuleBasedStateMachine):
    """Every step keeps the budget, serves all decodes it keeps, and never lets a block go."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = _scheduler()
        self.live: list[Sequence] = []
        self.num_made = 0

    @rule(
        prompt_len=st.integers(1, _CAPACITY - 1),
        num_output=st.integers(1, 20),
        priority=st.integers(-1, 1),
    )
    def submit(self, prompt_len: int, num_output: int, priority: int) -> None:
        max_len = min(prompt_len + num_output, _CAPACITY)
        sequence = _sequence(self.num_made, prompt_len, max_len, priority)
        self.num_made += 1
        self.scheduler.add(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.scheduler.remove(sequence)
        self.live.remove(sequence)

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        first = min(self.live, key=lambda sequence: sequence.order)
        decodes = {s for s in self.scheduler.running if s.num_uncomputed == 1}
        plan = self.scheduler.schedule()
        planned = {part.sequence: part.num_tokens for part in plan.slices}
        assert plan.slices, "work waits but nothing is planned"
        assert sum(planned.values()) <= _BUDGET
        assert len(planned) == len(plan.slices)
        assert set(planned) <= set(self.scheduler.running)
        assert len(self.scheduler.running) <= _MAX_RUNNING
        assert decodes & set(self.scheduler.running) <= set(planned)
        kinds = [part.is_decode for part in plan.slices]
        assert kinds == sorted(kinds, reverse=True)
        if first in decodes:
            assert first in planned, "the first in order was held up"
        for sequence, num_tokens in planned.items():
            needed = sequence.num_computed + num_tokens
            assert len(sequence.block_ids) * _BLOCK >= needed
        for sequence in _apply(self.scheduler, plan):
            self.live.remove(sequence)

    @invariant()
    def accounts_are_right(self) -> None:
        self.scheduler.check()
        both = self.scheduler.waiting + self.scheduler.running
        assert sorted(s.request_key for s in both) == sorted(s.request_key for s in self.live)

    def teardown(self) -> None:
        """Whatever happened, everything ends, and all blocks come back."""
        for _ in range(200 + 60 * len(self.live)):
            if not self.scheduler.has_work:
                break
            self.step()
            self.accounts_are_right()
        assert not self.live
        assert self.scheduler.pool.num_free == _NUM_BLOCKS


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_sequence_that_can_never_fit_is_refused_with_limit_and_value() -> None:
    with pytest.raises(ContextLengthError, match="may take 33 tokens, limit is 32"):
        _scheduler().add(_sequence(0, 30, 33))


def test_decodes_go_on_while_a_long_prompt_is_cut() -> None:
    scheduler = _scheduler(num_blocks=40)
    scheduler.add(_sequence(0, 2, 30))
    _apply(scheduler, scheduler.schedule())
    scheduler.add(_sequence(1, 20, 25))
    chunks = []
    for _ in range(4):
        plan = scheduler.schedule()
        chunks.append([(p.sequence.request_key, p.num_tokens) for p in plan.slices])
        _apply(scheduler, plan)
    assert chunks == [[(0, 1), (1, 5)]] * 4


def test_first_come_is_first_served_within_a_priority() -> None:
    scheduler = _scheduler(max_num_sequences=1)
    for key, priority in enumerate([0, 0, -1, 1]):
        scheduler.add(_sequence(key, 1, 2, priority))
    order = []
    while scheduler.has_work:
        order += [s.request_key for s in _apply(scheduler, scheduler.schedule())]
    assert order == [2, 0, 1, 3]


def test_large_request_is_not_overtaken_for_ever() -> None:
    scheduler = _scheduler()
    scheduler.add(_sequence(0, 4, 12))
    _apply(scheduler, scheduler.schedule())
    scheduler.add(_sequence(1, 30, 31))
    scheduler.add(_sequence(2, 1, 2))
    finished: list[int] = []
    while scheduler.has_work:
        finished += [s.request_key for s in _apply(scheduler, scheduler.schedule())]
    assert finished == [0, 1, 2]


def test_last_in_order_gives_its_blocks_back_and_finishes_later() -> None:
    scheduler = _scheduler(num_blocks=4)
    first, second = _sequence(0, 7, 16), _sequence(1, 4, 16)
    for sequence in (first, second):
        scheduler.add(sequence)
    finished: list[Sequence] = []
    while scheduler.has_work:
        finished += _apply(scheduler, scheduler.schedule())
        scheduler.check()
    assert finished == [first, second]
    assert scheduler.num_preemptions > 0


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


@given(data=st.data())
def test_pool_accounts_for_every_block_whatever_is_taken_and_freed(data: st.DataObject) -> None:
    pool = BlockPool(data.draw(st.integers(1, 30)), _BLOCK)
    tables: list[list[int]] = []
    for _ in range(data.draw(st.integers(0, 40))):
        wanted = data.draw(st.integers(0, 6))
        if wanted == 0 and tables:
            pool.give_back(tables.pop(data.draw(st.integers(0, len(tables) - 1))))
        elif wanted > pool.num_free:
            with pytest.raises(OutOfBlocksError):
                pool.take(wanted)
        else:
            after = tables[-1][-1] if tables and tables[-1] else None
            tables.append(pool.take(wanted, after=after))
            assert len(tables[-1]) == wanted
        pool.check(tables)
