"""The engine's figures for ``/metrics``: of each step and of each request's end."""

from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

_PREFIX = "triptych_generate"
#: Seconds; from a small model's decode on a GPU to a long prefill on a CPU.
_STEP_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_FIRST_TOKEN_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_ANSWER_BUCKETS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(slots=True)
class RequestTimes:
    """When one request came and when its tokens did, by ``time.perf_counter``."""

    came_at: float
    first_at: float = 0.0
    last_at: float = 0.0
    num_steps: int = 0

    def note_step(self, now: float) -> None:
        """A step that gave the request tokens."""
        self.first_at = self.first_at or now
        self.last_at = now
        self.num_steps += 1


class EngineMetrics:
    """Counts and times of one engine. Methods may be called on any thread."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._step_seconds = Histogram(
            f"{_PREFIX}_step_seconds", "seconds of a step", buckets=_STEP_BUCKETS, registry=None
        )
        self._tokens = Counter(
            f"{_PREFIX}_tokens",
            "tokens computed in prefill chunks (again after preemption), and tokens sampled",
            ["kind"],
            registry=None,
        )
        self._first_token_seconds = Histogram(
            f"{_PREFIX}_first_token_seconds",
            "seconds from a request's admission to its first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=None,
        )
        self._scored = Counter(
            f"{_PREFIX}_scored_positions",
            "vocabulary rows whose logprobs were computed: none where nobody asked",
            registry=None,
        )
        self._between_tokens_seconds = Histogram(
            f"{_PREFIX}_between_tokens_seconds",
            "mean seconds between a request's tokens, one value each",
            buckets=_STEP_BUCKETS,
            registry=None,
        )
        self._answer_seconds = Histogram(
            f"{_PREFIX}_answer_seconds",
            "seconds from a request's admission to its end, at any door",
            buckets=_ANSWER_BUCKETS,
            registry=None,
        )
        self._resumed = Counter(
            f"{_PREFIX}_requests_resumed",
            "admitted requests that began elsewhere",
            registry=None,
        )
        self._ended = Counter(
            f"{_PREFIX}_requests_ended",
            "admitted requests by how they ended: finish reason, error code, or client_gone",
            ["reason"],
            registry=None,
        )
        self._prefill = self._tokens.labels("prefill")
        self._output = self._tokens.labels("output")

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return (
            self._step_seconds,
            self._tokens,
            self._scored,
            self._first_token_seconds,
            self._between_tokens_seconds,
            self._answer_seconds,
            self._resumed,
            self._ended,
        )

    def step_ended(
        self, *, seconds: float, num_prefill: int, num_output: int, num_scored: int
    ) -> None:
        self.num_steps += 1
        self._step_seconds.observe(seconds)
        self._prefill.inc(num_prefill)
        self._output.inc(num_output)
        self._scored.inc(num_scored)

    def first_token_came(self, *, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def request_came(self, *, is_resumed: bool) -> None:
        self._resumed.inc(is_resumed)

    def request_left(self, times: RequestTimes, *, now: float) -> None:
        """A request is over in the engine, however it ended."""
        self._answer_seconds.observe(now - times.came_at)
        if times.num_steps > 1:
            between = (times.last_at - times.first_at) / (times.num_steps - 1)
            self._between_tokens_seconds.observe(between)

    def request_ended(self, reason: str) -> None:
        self._ended.labels(reason).inc()
