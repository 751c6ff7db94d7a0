"""The scheduler against its rules: any submits, aborts and steps, with accounting after each."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.fake_kv import FakeKv, step
from triptych.errors import ContextLengthError
from triptych.wire import SamplingParams
from triptych_generate.blocks import BlockPool
from triptych_generate.kept_scores import MAX_KEPT_BEST
from triptych_generate.scheduler import MAX_OVERTAKEN, Plan, Scheduler
from triptych_generate.sequence import Sequence

_BLOCK = 4
_NUM_BLOCKS = 8
_CAPACITY = _NUM_BLOCKS * _BLOCK
_BUDGET = 6
_MAX_RUNNING = 4
#: Texts that begin alike, or not.
_TEXTS = {
    "ones": [1] * _CAPACITY,
    "ones, then twos": [1] * 10 + [2] * _CAPACITY,
    "rising": list(range(_CAPACITY)),
}
_STATEFUL = settings(max_examples=60, stateful_step_count=30)


def _sequence(
    key: int,
    prompt_len: int,
    max_len: int,
    priority: int = 0,
    *,
    text: list[int] | None = None,
    salt: str | None = None,
    choice_index: int = 0,
    prompt_logprobs: int | None = None,
) -> Sequence:
    """Without ``text`` no two prompts begin alike."""
    ids = list(range(1000 * key, 1000 * key + prompt_len)) if text is None else text[:prompt_len]
    return Sequence(
        request_key=key,
        choice_index=choice_index,
        token_ids=ids,
        prompt_len=prompt_len,
        max_len=max_len,
        params=SamplingParams(prompt_logprobs=prompt_logprobs),
        seed=0,
        priority=priority,
        cache_salt=salt,
        scores_prompt=prompt_logprobs is not None,
    )


def _scheduler(**sizes: int) -> Scheduler:
    return Scheduler(
        BlockPool(sizes.get("num_blocks", _NUM_BLOCKS), _BLOCK),
        max_step_tokens=sizes.get("max_step_tokens", _BUDGET),
        max_num_sequences=sizes.get("max_num_sequences", _MAX_RUNNING),
        prefix_cache=True,
    )


def _planned(plan: Plan) -> dict[int, int]:
    """Tokens by request key."""
    return {part.sequence.request_key: part.num_tokens for part in plan.slices}


def _run_all(scheduler: Scheduler, kv: FakeKv | None = None) -> list[int]:
    """Step until nothing is left: the request keys in the order in which they finish."""
    kv = kv or FakeKv(scheduler.pool)
    finished: list[int] = []
    while scheduler.has_work:
        finished += [sequence.request_key for sequence in step(scheduler, kv)[1]]
    return finished


class TightMachine(RuleBasedStateMachine):
    """Few blocks: every step keeps the budget, serves all decodes it keeps, and shares rightly."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = _scheduler()
        self.kv = FakeKv(self.scheduler.pool)
        self.live: list[Sequence] = []
        self.num_made = 0

    @rule(
        text=st.sampled_from(sorted(_TEXTS)),
        prompt_len=st.integers(1, _CAPACITY - 1),
        num_output=st.integers(0, 20),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, "", "other"]),
        n=st.integers(1, 3),
        prompt_logprobs=st.sampled_from([None, 0, 2, MAX_KEPT_BEST + 1]),
    )
    def submit(
        self,
        text: str,
        prompt_len: int,
        num_output: int,
        priority: int,
        salt: str | None,
        n: int,
        prompt_logprobs: int | None,
    ) -> None:
        for choice_index in range(n):
            sequence = _sequence(
                self.num_made,
                prompt_len,
                min(prompt_len + num_output, _CAPACITY),
                priority,
                text=_TEXTS[text],
                salt=salt,
                choice_index=choice_index,
                prompt_logprobs=prompt_logprobs if choice_index == 0 else None,
            )
            self.scheduler.add(sequence)
            self.live.append(sequence)
        self.num_made += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_bad=st.booleans())
    def abort(self, data: st.DataObject, is_bad: bool) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        if is_bad:
            self.scheduler.distrust(sequence)
        self.scheduler.remove(sequence)
        self.live.remove(sequence)

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        first = min(self.live, key=lambda sequence: sequence.order)
        decodes = {s for s in self.scheduler.running if s.num_uncomputed == 1}
        computed = {s: s.num_computed for s in self.scheduler.running}
        plan, finished = step(self.scheduler, self.kv)
        planned = {part.sequence: part.num_tokens for part in plan.slices}
        assert plan.slices, "work waits but nothing is planned"
        assert sum(planned.values()) <= _BUDGET
        assert len(planned) == len(plan.slices)
        assert len(self.scheduler.running) <= _MAX_RUNNING
        assert decodes & set(self.scheduler.running) <= set(planned)
        assert set(planned) - set(finished) <= set(self.scheduler.running)
        if first in computed:
            assert first in planned, "the first in order was held up"
        for sequence in finished:
            self.live.remove(sequence)

    @invariant()
    def accounts_are_right(self) -> None:
        self.scheduler.check()
        both = self.scheduler.waiting + self.scheduler.running
        assert sorted(s.order for s in both) == sorted(s.order for s in self.live)
        assert all(s.num_overtaken <= MAX_OVERTAKEN for s in both)

    def teardown(self) -> None:
        """Whatever happened, everything ends, and all blocks come back."""
        for _ in range(200 + 60 * len(self.live)):
            if not self.scheduler.has_work:
                break
            self.step()
            self.accounts_are_right()
        assert not self.live
        assert self.scheduler.pool.num_free == _NUM_BLOCKS
        assert not self.scheduler.prefixes._claims


TestTight = TightMachine.TestCase
TestTight.settings = _STATEFUL


@dataclass
class _Naive:
    """One request of the naive scheduler: what it has yet to compute."""

    order: tuple[int, int]
    prompt: int
    output: int
    runs: bool = False


def _naive_step(requests: list[_Naive]) -> dict[int, int]:
    """What a step plans when blocks are plenty and nothing is shared, written as the rule reads."""
    requests.sort(key=lambda one: one.order)
    planned = {one.order[1]: 1 for one in requests if one.runs and one.prompt == 1}
    budget = _BUDGET - len(planned)

    def give(one: _Naive, most: int) -> None:
        nonlocal budget
        num_running = sum(each.runs for each in requests)
        if not one.runs and num_running == _MAX_RUNNING:
            return
        num_tokens = min(one.prompt - planned.get(one.order[1], 0), most, budget)
        if num_tokens > 0:
            one.runs = True
            budget -= num_tokens
            planned[one.order[1]] = planned.get(one.order[1], 0) + num_tokens

    pending = [one for one in requests if one.order[1] not in planned]
    if pending and budget:
        able = [one for one in pending if one.runs] or pending
        if sum(each.runs for each in requests) < _MAX_RUNNING:
            able = pending
        give(able[0], -(-budget // 2))
        shorter = [one for one in able if one.prompt < able[0].prompt]
        for one in sorted(shorter, key=lambda one: (one.prompt, one.order)):
            give(one, budget)
        for one in able:
            give(one, budget)
    for one in requests:
        one.prompt -= planned.get(one.order[1], 0)
        if one.order[1] in planned and one.prompt == 0:
            one.output -= 1
            one.prompt = 1
    requests[:] = [one for one in requests if one.output]
    return planned


class AmpleMachine(RuleBasedStateMachine):
    """Blocks enough: every plan is the naive scheduler's."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = _scheduler(num_blocks=2000)
        self.kv = FakeKv(self.scheduler.pool)
        self.naive: list[_Naive] = []
        self.num_made = 0

    @rule(prompt_len=st.integers(1, 40), num_output=st.integers(1, 8))
    def submit(self, prompt_len: int, num_output: int) -> None:
        self.scheduler.add(_sequence(self.num_made, prompt_len, prompt_len + num_output))
        self.naive.append(_Naive((0, self.num_made), prompt_len, num_output))
        self.num_made += 1

    @precondition(lambda self: self.naive)
    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            assert _planned(step(self.scheduler, self.kv)[0]) == _naive_step(self.naive)


TestAmple = AmpleMachine.TestCase
TestAmple.settings = _STATEFUL


def test_sequence_that_can_never_fit_is_refused_with_limit_and_value() -> None:
    with pytest.raises(ContextLengthError, match="may take 33 tokens, limit is 32"):
        _scheduler().add(_sequence(0, 30, 33))


def test_decodes_go_on_while_a_long_prompt_is_cut() -> None:
    scheduler = _scheduler(num_blocks=40)
    kv = FakeKv(scheduler.pool)
    scheduler.add(_sequence(0, 2, 30))
    step(scheduler, kv)
    scheduler.add(_sequence(1, 20, 25))
    assert [_planned(step(scheduler, kv)[0]) for _ in range(4)] == [{0: 1, 1: 5}] * 4


def test_first_come_is_first_served_within_a_priority() -> None:
    scheduler = _scheduler(max_num_sequences=1)
    for key, priority in enumerate([0, 0, -1, 1]):
        scheduler.add(_sequence(key, 1, 2, priority))
    assert _run_all(scheduler) == [2, 0, 1, 3]


def test_short_prompt_behind_many_long_ones_is_computed_at_once() -> None:
    scheduler = _scheduler(num_blocks=1000)
    kv = FakeKv(scheduler.pool)
    for key in range(20):
        scheduler.add(_sequence(key, 100, 101))
    step(scheduler, kv)
    scheduler.add(_sequence(20, 3, 4))
    plan, finished = step(scheduler, kv)
    assert _planned(plan) == {0: 3, 20: 3}
    assert [sequence.request_key for sequence in finished] == [20]


def test_long_prompt_gets_half_of_the_budget_under_a_flood_of_short_ones() -> None:
    scheduler = _scheduler(num_blocks=1000)
    kv = FakeKv(scheduler.pool)
    scheduler.add(_sequence(0, 60, 61))
    for key in range(1, 21):
        scheduler.add(_sequence(key, 3, 4))
        assert _planned(step(scheduler, kv)[0]) == {0: 3, key: 3}
    assert not scheduler.has_work


def test_prompt_whose_beginning_is_cached_counts_as_short() -> None:
    scheduler = _scheduler(num_blocks=1000)
    kv = FakeKv(scheduler.pool)
    chat = list(range(41))
    scheduler.add(_sequence(0, 40, 41, text=chat))
    _run_all(scheduler, kv)
    for key in (1, 2, 3):
        scheduler.add(_sequence(key, 30, 31))
    scheduler.add(_sequence(4, 41, 42, text=chat))
    assert _planned(step(scheduler, kv)[0]) == {1: 5, 4: 1}


def test_priority_comes_before_shortness() -> None:
    scheduler = _scheduler(num_blocks=1000)
    kv = FakeKv(scheduler.pool)
    scheduler.add(_sequence(0, 2, 3, priority=1))
    scheduler.add(_sequence(1, 12, 13, priority=0))
    assert [_planned(step(scheduler, kv)[0]) for _ in range(3)] == [{1: 6}, {1: 6}, {0: 2}]


def test_higher_priority_takes_the_blocks_and_the_place_of_a_lower_one() -> None:
    for sizes in ({"num_blocks": 4}, {"max_num_sequences": 1}):
        scheduler = _scheduler(**sizes)
        kv = FakeKv(scheduler.pool)
        scheduler.add(_sequence(0, 6, 16, priority=1))
        step(scheduler, kv)
        scheduler.add(_sequence(1, 12, 13, priority=0))
        assert 1 in _planned(step(scheduler, kv)[0])
        assert _run_all(scheduler, kv) == [1, 0]
        assert scheduler.num_preemptions == 1


def test_copy_goes_to_a_block_that_a_displaced_sequence_got_in_the_same_step() -> None:
    scheduler = _scheduler(num_blocks=3, max_num_sequences=1)
    kv = FakeKv(scheduler.pool)
    scheduler.add(_sequence(0, 4, 5, text=_TEXTS["ones"]))
    _run_all(scheduler, kv)
    scheduler.add(_sequence(1, 4, 8, priority=1))
    step(scheduler, kv)
    scheduler.add(_sequence(2, 4, 5, text=_TEXTS["ones"]))
    plan, _ = step(scheduler, kv)
    assert [part.sequence.request_key for part in plan.slices] == [2]
    assert [target for _, target in plan.copies] == [2]
    assert not plan.new_blocks


def test_request_that_lacks_blocks_is_overtaken_a_bounded_number_of_times() -> None:
    scheduler = _scheduler()
    kv = FakeKv(scheduler.pool)
    scheduler.add(_sequence(0, 4, 31))
    step(scheduler, kv)
    large = _sequence(1, 30, 31)
    scheduler.add(large)
    for key in range(2, 4 * MAX_OVERTAKEN):
        scheduler.add(_sequence(key, 1, 2))
    finished = _run_all(scheduler, kv)
    assert large.num_overtaken == MAX_OVERTAKEN
    assert sum(finished.index(key) < finished.index(1) for key in finished) == MAX_OVERTAKEN + 1


def test_last_in_order_gives_its_blocks_back_and_finishes_later() -> None:
    scheduler = _scheduler(num_blocks=4)
    scheduler.add(_sequence(0, 7, 16))
    scheduler.add(_sequence(1, 4, 16))
    assert _run_all(scheduler) == [0, 1]
    assert scheduler.num_preemptions > 0


def test_nobody_begins_in_a_step_that_took_blocks_away() -> None:
    scheduler = Scheduler(BlockPool(4, _BLOCK), max_step_tokens=16, max_num_sequences=4)
    kv = FakeKv(scheduler.pool)
    for key in (0, 1):
        scheduler.add(_sequence(key, 7, 12))
    for _ in range(2):
        step(scheduler, kv)
    scheduler.add(_sequence(2, 1, 2))
    assert _planned(step(scheduler, kv)[0]) == {0: 1}
    assert scheduler.num_preemptions == 1
    assert scheduler.pool.num_free == 1
    assert sorted(_run_all(scheduler, kv)) == [0, 1, 2]
