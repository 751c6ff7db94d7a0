"""The step loop: schedule, run, postprocess, on the worker thread."""

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from triptych.errors import InternalError, TriptychError, UnavailableError
from triptych.logprobs import Logprobs, join_logprobs, pack_logprobs
from triptych.wire import ChoiceDelta
from triptych_generate.memory import is_out_of_memory, release_cached
from triptych_generate.metrics import EngineMetrics, RequestTimes
from triptych_generate.outcomes import Outcome, PromptScores, next_tokens, prompt_scores
from triptych_generate.runner import Runner
from triptych_generate.scheduler import Plan, Scheduler
from triptych_generate.sequence import Sequence, finish_reason
from triptych_generate.worker import Worker

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Update:
    """What one request gained in a step. After an ``error`` nothing follows.

    ``cached_tokens`` of the prompt were not computed; told once.
    """

    request_key: int
    choices: list[ChoiceDelta] = field(default_factory=list)
    prompt_logprobs: Logprobs | None = None
    cached_tokens: int = 0
    error: TriptychError | None = None


@dataclass(slots=True)
class _Running:
    """A request in the engine: its unfinished sequences.

    ``prompt_scorer`` is the one that makes the prompt's scores; None when they left or are not
    wanted. ``first`` is the first choice; None when its cached tokens were told.
    """

    sequences: list[Sequence]
    prompt_scorer: Sequence | None
    first: Sequence | None
    times: RequestTimes


@dataclass(frozen=True, slots=True)
class _Submit:
    """A request's sequences to run, and since when they wait (``time.perf_counter``)."""

    sequences: list[Sequence]
    since: float


#: What to run, a request key to abort, or None to stop.
_Command = _Submit | int | None


class Engine:
    """Runs sequences step by step; other threads only call ``submit``, ``abort`` and the like.

    ``deliver`` gets all updates of a step in one call, and ``on_death`` the error that ended the
    loop; both are called on the worker thread.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        deliver: Callable[[list[Update]], None],
        on_death: Callable[[BaseException], None],
        metrics: EngineMetrics,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._deliver = deliver
        self._on_death = on_death
        self._metrics = metrics
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._requests: dict[int, _Running] = {}
        self._unstarted: dict[int, int] = {}
        self._is_stopping = False
        self._has_died = False
        self._running_loop: Future[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Requests none of whose tokens was scheduled yet. Any thread."""
        return len(self._unstarted)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that these requests begin with. Any thread."""
        return sum(list(self._unstarted.values()))  # copied first: another thread may take one out

    @property
    def is_alive(self) -> bool:
        started = self._running_loop is not None and not self._running_loop.done()
        return started and not self._has_died

    def start(self, worker: Worker) -> None:
        """Run the loop on ``worker``, which does nothing else until ``stop``."""
        self._running_loop = worker.submit(self._loop)

    def stop(self, timeout_s: float) -> None:
        """End the loop after the step that runs; blocks up to ``timeout_s``."""
        self._commands.put(None)
        if self._running_loop is not None:
            wait([self._running_loop], timeout_s)

    def expect(self, sequences: list[Sequence]) -> None:
        """Count one request as waiting; ``submit`` or ``abort`` follows."""
        self._unstarted[sequences[0].request_key] = len(sequences[0].token_ids)

    def submit(self, sequences: list[Sequence], *, since: float) -> None:
        """Run the sequences of one request, which waits ``since`` (``time.perf_counter``).

        Each must fit the KV blocks alone.
        """
        self.expect(sequences)
        self._commands.put(_Submit(sequences, since))

    def abort(self, request_key: int) -> None:
        """Forget a request before the next step. Nothing more is delivered of it after that."""
        self._unstarted.pop(request_key, None)
        self._commands.put(request_key)

    def _loop(self) -> None:
        try:
            while self._take_commands():
                updates = self.step()
                if updates:
                    self._deliver(updates)
        except BaseException as error:  # noqa: BLE001  # the loop's edge: every waiter must hear
            _log.exception("the step loop died")
            self._has_died = True
            self._on_death(error)

    def _take_commands(self) -> bool:
        """Apply all commands, waiting for one when nothing runs; False to stop."""
        while not self._is_stopping:
            try:
                command = self._commands.get(block=not self._scheduler.has_work)
            except queue.Empty:
                return True
            self._apply(command)
        return False

    def _apply(self, command: _Command) -> None:
        if command is None:
            self._is_stopping = True
        elif isinstance(command, int):
            self._drop(command)
        else:
            self._admit(command)

    def _admit(self, command: _Submit) -> None:
        sequences, first = command.sequences, command.sequences[0]
        scorer = next((sequence for sequence in sequences if sequence.scores_prompt), None)
        times = RequestTimes(command.since)
        self._requests[first.request_key] = _Running(list(sequences), scorer, first, times)
        self._metrics.request_came(is_resumed=first.num_output > 0)
        for sequence in sequences:
            self._scheduler.add(sequence)

    def step(self) -> list[Update]:
        """One step: what each request gained by it."""
        start = time.perf_counter()
        plan = self._scheduler.schedule()
        computed = self._compute(plan)
        if computed is None:
            return self._shed(plan)
        all_scores, outcomes = computed
        num_prefill = plan.num_prefill_tokens
        self._scheduler.advance(plan)
        for part in plan.slices:
            self._unstarted.pop(part.sequence.request_key, None)
        updates: dict[int, Update] = {}
        for scores in all_scores:
            self._keep_prompt_scores(scores, updates)
        for outcome in outcomes:
            self._keep_token(outcome, updates)
        self._finish_scored_prompts(plan, updates)
        now = time.perf_counter()
        for key, update in updates.items():
            if any(choice.token_ids for choice in update.choices):
                self._requests[key].times.note_step(now)
            self._close_update(key, update)
        self._metrics.step_ended(
            seconds=now - start,
            num_prefill=num_prefill,
            num_output=len(outcomes),
            num_scored=sum(len(scores.parts) for scores in all_scores)
            + sum(outcome.logprobs is not None for outcome in outcomes),
        )
        return list(updates.values())

    def _compute(self, plan: Plan) -> tuple[list[PromptScores], list[Outcome]] | None:
        """All that a step computes; None when memory ran out. It changes no sequence."""
        try:
            logits = self._runner.run(plan)
            return prompt_scores(logits), next_tokens(logits)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _log.error("a step of %d sequences ran out of memory: %s", len(plan.slices), error)
            return None

    def _shed(self, plan: Plan) -> list[Update]:
        """End the requests of a step that ran out of memory; those that may fit without them go on.

        What a step computes is kept only when all of it is there, so the others are planned again
        as they were. Prefill chunks need most of a step's memory and are ended; if there are none,
        the newest request is. Each such step ends one at least, so they cannot follow for ever.
        """
        release_cached()
        sequences = [part.sequence for part in plan.slices]
        prefills = [part.sequence for part in plan.slices if not part.is_decode]
        ended = {one.request_key for one in prefills or sequences[-1:]}
        for key in ended:
            self._unstarted.pop(key, None)
            self._drop(key)
        untouched = [*plan.new_blocks, *(target for _, target in plan.copies)]
        self._restart([one for one in sequences if one.request_key not in ended], untouched)
        error = UnavailableError("the device ran out of memory in a step", retry_after_s=1)
        return [Update(key, error=error) for key in sorted(ended)]

    def _restart(self, sequences: list[Sequence], untouched_blocks: list[int]) -> None:
        """Compute again, from their start, sequences that own a block which nothing has cleared."""
        for sequence in sequences:
            if not set(untouched_blocks).isdisjoint(sequence.block_ids):
                self._scheduler.remove(sequence)
                self._scheduler.add(sequence)

    def _keep_prompt_scores(self, scores: PromptScores, updates: dict[int, Update]) -> None:
        sequence = scores.sequence
        sequence.prompt_scores += scores.parts
        if scores.error is not None:
            self._fail(sequence, scores.error, updates)
        else:
            self._scheduler.prefixes.keep_scores(sequence)

    def _keep_token(self, outcome: Outcome, updates: dict[int, Update]) -> None:
        sequence = outcome.sequence
        if outcome.error is not None:
            self._fail(sequence, outcome.error, updates)
        if outcome.is_end:
            end = ChoiceDelta(
                index=sequence.choice_index,
                token_ids=[],
                finish_reason="stop",
                stop_reason="grammar",
            )
            _update_of(sequence, updates).choices.append(end)
            self._retire(sequence)
            return
        if outcome.token_id is None:
            return
        sequence.token_ids.append(outcome.token_id)
        reason, stop_id = finish_reason(sequence)
        _update_of(sequence, updates).choices.append(
            ChoiceDelta(
                index=sequence.choice_index,
                token_ids=[outcome.token_id],
                logprobs=outcome.logprobs,
                finish_reason=reason,
                stop_reason=stop_id,
            )
        )
        if reason is not None:
            self._retire(sequence)

    def _fail(self, sequence: Sequence, error: TriptychError, updates: dict[int, Update]) -> None:
        """End the request with its first error; what a faulty model computed is not shared."""
        update = _update_of(sequence, updates)
        update.error = update.error or error
        if isinstance(error, InternalError):
            self._scheduler.distrust(sequence)

    def _finish_scored_prompts(self, plan: Plan, updates: dict[int, Update]) -> None:
        """End sequences that are computed to their end and may not sample (``max_tokens`` 0)."""
        for sequence in [part.sequence for part in plan.slices]:
            request = self._requests[sequence.request_key]
            if sequence.is_full and not sequence.num_uncomputed and sequence in request.sequences:
                end = ChoiceDelta(index=sequence.choice_index, token_ids=[], finish_reason="length")
                _update_of(sequence, updates).choices.append(end)
                self._retire(sequence)

    def _close_update(self, key: int, update: Update) -> None:
        """Add the prompt's scores when they are complete; forget the request when it ended."""
        request = self._requests[key]
        if update.error is not None:
            self._drop(key)
            return
        update.prompt_logprobs = _take_prompt_logprobs(request)
        update.cached_tokens = _take_cached_tokens(request)
        if not request.sequences:
            self._forget(key)

    def _retire(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._requests[sequence.request_key].sequences.remove(sequence)

    def _drop(self, key: int) -> None:
        if key in self._requests:
            for sequence in self._requests[key].sequences:
                self._scheduler.remove(sequence)
            self._forget(key)

    def _forget(self, key: int) -> None:
        times = self._requests.pop(key).times
        self._metrics.request_left(times, now=time.perf_counter())


def _update_of(sequence: Sequence, updates: dict[int, Update]) -> Update:
    return updates.setdefault(sequence.request_key, Update(sequence.request_key))


def _take_prompt_logprobs(request: _Running) -> Logprobs | None:
    """The prompt's logprobs once, when all are made. The first position has no score."""
    sequence = request.prompt_scorer
    if sequence is None or sequence.num_scored < sequence.prompt_len:
        return None
    request.prompt_scorer = None
    return join_logprobs([pack_logprobs([[]]), *sequence.prompt_scores])


def _take_cached_tokens(request: _Running) -> int:
    """How much of the prompt the first choice found in the prefix cache, once."""
    sequence, request.first = request.first, None
    if sequence is None or sequence.num_cached is None:
        return 0
    return min(sequence.num_cached, sequence.prompt_len)
