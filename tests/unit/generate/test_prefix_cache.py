"""What sequences share, against a naive list of all that was computed before."""

from hypothesis import given
from hypothesis import strategies as st

from support.fake_kv import FakeKv, step
from triptych.wire import SamplingParams
from triptych_generate.blocks import BlockPool
from triptych_generate.scheduler import Scheduler
from triptych_generate.sequence import Sequence

_BLOCK = 4


class _Runs:
    """A scheduler over fake memory: requests run one after another, or several at once."""

    def __init__(self, *, num_blocks: int = 1000, prefix_cache: bool = True) -> None:
        self.scheduler = Scheduler(
            BlockPool(num_blocks, _BLOCK),
            max_step_tokens=16,
            max_num_sequences=16,
            prefix_cache=prefix_cache,
        )
        self.kv = FakeKv(self.scheduler.pool)
        self._num_made = 0

    def make(
        self, prompt: list[int], *, num_output: int = 1, n: int = 1, salt: str | None = None
    ) -> list[Sequence]:
        self._num_made += 1
        return [
            Sequence(
                request_key=self._num_made,
                choice_index=index,
                token_ids=list(prompt),
                prompt_len=len(prompt),
                max_len=len(prompt) + num_output,
                params=SamplingParams(),
                seed=0,
                cache_salt=salt,
            )
            for index in range(n)
        ]

    def run(self, sequences: list[Sequence]) -> int:
        """Tokens that were computed until all are finished."""
        before = self.kv.num_computed
        for sequence in sequences:
            self.scheduler.add(sequence)
        while self.scheduler.has_work:
            step(self.scheduler, self.kv)
        return self.kv.num_computed - before


@given(
    prompts=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=14),
            st.integers(1, 6),
            st.sampled_from([None, "", "a"]),
        ),
        max_size=12,
    )
)
def test_hit_is_the_longest_known_whole_prefix(
    prompts: list[tuple[list[int], int, str | None]],
) -> None:
    runs, known = _Runs(), set()
    for prompt, num_output, salt in prompts:
        whole = [(salt, tuple(prompt[:end])) for end in range(_BLOCK, len(prompt) + 1, _BLOCK)]
        num_known = next((i for i, one in enumerate(whole) if one not in known), len(whole))
        is_whole = num_known == len(whole) and (salt, tuple(prompt)) in known
        expected = len(prompt) if is_whole else num_known * _BLOCK
        (sequence,) = runs.make(prompt, num_output=num_output, salt=salt)
        num_computed = runs.run([sequence])
        assert num_computed == len(sequence.token_ids) - 1 - min(expected, len(prompt) - 1)
        known.add((salt, tuple(prompt)))
        computed = sequence.token_ids[:-1]
        known |= {(salt, tuple(computed[:end])) for end in range(_BLOCK, len(computed) + 1, _BLOCK)}


def test_next_turn_of_a_chat_hits_the_answer_too() -> None:
    runs = _Runs()
    (turn,) = runs.make([5, 6, 7], num_output=10)
    runs.run([turn])
    (following,) = runs.make([*turn.token_ids, 8, 9])
    runs.run([following])
    assert following.num_cached == 12


def test_choices_compute_their_prompt_once() -> None:
    runs = _Runs()
    assert runs.run(runs.make(list(range(30)), n=8)) == 30 + 7
    assert runs.run(runs.make(list(range(50, 52)), n=8)) == 2 + 7


def test_burst_of_requests_computes_what_they_have_in_common_once() -> None:
    runs = _Runs()
    burst = [runs.make([*range(40), 100 + index])[0] for index in range(10)]
    assert runs.run(burst) == 40 + 10


def test_request_does_not_wait_for_a_lower_priority_that_computes_the_same() -> None:
    runs = _Runs()
    (low,), (high,) = runs.make(list(range(60))), runs.make(list(range(60)))
    low.priority, low.order = 1, (1, 1, 0)
    runs.scheduler.add(low)
    step(runs.scheduler, runs.kv)
    runs.scheduler.add(high)
    plan, _ = step(runs.scheduler, runs.kv)
    assert [part.sequence for part in plan.slices] == [high]
    assert high.num_cached == 16


def test_other_salts_share_nothing() -> None:
    runs = _Runs()
    for salt in (None, "", "a", "salt:a"):
        assert runs.run(runs.make(list(range(20)), salt=salt)) == 20


def test_preempted_sequence_computes_little_again() -> None:
    runs = _Runs(num_blocks=10)
    sequences = [runs.make([index] * 9, num_output=14)[0] for index in range(2)]
    num_once = sum(len(one.token_ids) + 13 for one in sequences)
    num_computed = runs.run(sequences)
    assert runs.scheduler.num_preemptions > 0
    assert num_once < num_computed <= num_once + runs.scheduler.num_preemptions * _BLOCK


def test_distrusted_blocks_are_computed_again() -> None:
    runs = _Runs()
    (sequence,) = runs.make(list(range(20)), num_output=2)
    runs.scheduler.add(sequence)
    step(runs.scheduler, runs.kv)
    runs.scheduler.distrust(sequence)
    runs.scheduler.remove(sequence)
    assert runs.run(runs.make(list(range(20)))) == 20


def test_without_the_cache_nothing_is_shared_or_kept() -> None:
    runs = _Runs(prefix_cache=False)
    for _ in range(2):
        assert runs.run(runs.make(list(range(20)), n=2)) == 40
    assert runs.scheduler.pool.cached.num_idle == 0
    assert runs.scheduler.prefixes.num_queried == 0
