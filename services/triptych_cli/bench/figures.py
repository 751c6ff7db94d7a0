"""What a level comes to: rates, and how latencies spread."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from triptych_cli.bench.answers import Answer
from triptych_cli.bench.load import ClientLoad
from triptych_cli.bench.settings import Level

#: Above these this client, not the server, may have set the figures: a share of one core, and of
#: the shortest median latency the part that its own lateness may be.
MAX_CPU_SHARE = 0.8
MAX_LATE_SHARE = 0.5
_MS = 1000.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds; percentiles are interpolated between the two nearest values."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """This client: its share of one core, and how late it woke (99th percentile)."""

    cpu_share: float
    late_p99_ms: float


class LevelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One level. Rates and spreads are those of answers without an error.

    Times count from the moment a request was due. ``between_tokens_ms``: between two parts of an
    answer that hold output. ``per_token_ms``: of each answer, the time after its first part over
    the tokens after the first. ``errors``: how many of each kind. ``counted_by``: where token
    counts are from: the server's ``usage``, the ``ids`` or the ``chunks`` that came.
    """

    concurrency: int | None
    rate: float | None
    num_requests: int
    num_answers: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    counted_by: str
    first_token_ms: Spread | None
    between_tokens_ms: Spread | None
    per_token_ms: Spread | None
    end_to_end_ms: Spread | None
    client: Client

    @property
    def label(self) -> str:
        return Level(self.concurrency, self.rate).label

    @property
    def is_client_saturated(self) -> bool:
        medians = [each.p50 for each in (self.first_token_ms, self.between_tokens_ms) if each]
        allowed_ms = MAX_LATE_SHARE * min(medians, default=float("inf"))
        return self.client.cpu_share > MAX_CPU_SHARE or self.client.late_p99_ms > allowed_ms


def level_figures(level: Level, answers: Sequence[Answer], client: ClientLoad) -> LevelFigures:
    good = [answer for answer in answers if answer.error is None]
    with_output = [answer for answer in good if answer.times]
    duration_s = max(a.end for a in answers) - min(a.due for a in answers)
    num_tokens = sum(answer.output_tokens for answer in good)
    prompts = [answer.usage[0] for answer in good if answer.usage is not None]
    return LevelFigures(
        concurrency=level.concurrency,
        rate=level.rate,
        num_requests=len(answers),
        num_answers=len(good),
        errors=dict(Counter(answer.error for answer in answers if answer.error).most_common()),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=num_tokens / duration_s,
        prompt_tokens_mean=float(np.mean(prompts)) if prompts else None,
        output_tokens_mean=num_tokens / len(good) if good else None,
        counted_by=" and ".join(sorted({answer.counted_by for answer in good})) or "nothing",
        first_token_ms=spread([answer.times[0] - answer.due for answer in with_output]),
        between_tokens_ms=spread([gap for answer in good for gap in _gaps(answer)]),
        per_token_ms=spread([_per_token(a) for a in with_output if a.output_tokens > 1]),
        end_to_end_ms=spread([answer.end - answer.due for answer in good]),
        client=_client(client),
    )


def spread(seconds: Sequence[float]) -> Spread | None:
    """How ``seconds`` spread; None of none."""
    if not seconds:
        return None
    values = np.asarray(seconds) * _MS
    p50, p90, p99 = (float(each) for each in np.percentile(values, (50, 90, 99)))
    return Spread(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))


def _gaps(answer: Answer) -> list[float]:
    return [after - before for before, after in pairwise(answer.times)]


def _per_token(answer: Answer) -> float:
    return (answer.times[-1] - answer.times[0]) / (answer.output_tokens - 1)


def _client(load: ClientLoad) -> Client:
    late = spread(load.late_s)
    return Client(
        cpu_share=load.cpu_s / load.wall_s if load.wall_s else 0.0,
        late_p99_ms=late.p99 if late else 0.0,
    )
