"""Figures as text for a terminal, and as JSON."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from triptych_cli.bench.figures import LevelFigures, Spread
from triptych_cli.bench.settings import BenchSettings

_SPREADS = {
    "first token": "first_token_ms",
    "between tokens": "between_tokens_ms",
    "per output token": "per_token_ms",
    "end to end": "end_to_end_ms",
}
_NAME_WIDTH = 22
_MANY = 1000.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. ``prompts``: the file's name; None: random words."""

    triptych: str
    url: str
    model: str
    endpoint: str
    requests: int
    prompt_tokens: int | None
    prompts: str | None
    output_tokens: int
    logprobs: int | None
    seed: int
    levels: list[LevelFigures]


def make_report(
    settings: BenchSettings, url: str, model: str, levels: list[LevelFigures]
) -> Report:
    return Report(
        triptych=version("triptych"),
        url=url,
        model=model,
        endpoint=settings.endpoint,
        requests=settings.requests,
        prompt_tokens=None if settings.prompts else settings.prompt_tokens,
        prompts=str(settings.prompts) if settings.prompts else None,
        output_tokens=settings.output_tokens,
        logprobs=settings.logprobs,
        seed=settings.seed,
        levels=levels,
    )


def as_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report)) + b"\n"


def heading(report: Report) -> str:
    return f"{report.model or 'a model'} at {report.url}, {report.endpoint}"


def asked(report: Report) -> str:
    """What each request asked for."""
    prompts = f"prompts of {report.prompts}"
    if report.prompts is None:
        prompts = f"prompts of about {report.prompt_tokens:,} tokens"
    logprobs = "" if report.logprobs is None else f", logprobs of {report.logprobs}"
    return (
        f"{report.requests:,} requests a level, {prompts}, "
        f"answers of up to {report.output_tokens:,}{logprobs}"
    )


def level_text(figures: LevelFigures) -> str:
    return "\n".join(_level_lines(figures))


def summary(levels: Sequence[LevelFigures]) -> str:
    """All levels side by side; milliseconds."""
    lines = [
        f"{'':>10}{'requests':>10}{'output':>10}{'first token':>18}{'between tokens':>18}"
        f"{'errors':>8}",
        f"{'load':>10}{'/s':>10}{'tokens/s':>10}{'p50':>9}{'p99':>9}{'p50':>9}{'p99':>9}",
    ]
    lines += [_summary_line(each) for each in levels]
    return "\n".join(lines)


def _level_lines(figures: LevelFigures) -> Iterator[str]:
    load = figures.label + (" at once" if figures.rate is None else "")
    yield (
        f"{load}: {figures.num_answers:,} answers in {figures.duration_s:.1f} s, "
        f"{figures.requests_per_s:.2f} requests/s, "
        f"{figures.output_tokens_per_s:,.1f} output tokens/s"
    )
    yield f"  {'ms':<{_NAME_WIDTH}}" + "".join(f"{name:>10}" for name in _columns())
    for name, field in _SPREADS.items():
        yield f"  {name:<{_NAME_WIDTH}}" + _spread_text(getattr(figures, field))
    if figures.output_tokens_mean is not None:
        prompt = figures.prompt_tokens_mean
        of_prompt = "" if prompt is None else f"{prompt:,.1f} of the prompt, "
        yield (
            f"  tokens a request: {of_prompt}{figures.output_tokens_mean:,.1f} of the answer, "
            f"by {figures.counted_by}"
        )
    if figures.errors:
        listed = ", ".join(f"{count:,} x {kind}" for kind, count in figures.errors.items())
        yield f"  errors: {listed}"
    yield (
        f"  this client: {figures.client.cpu_share:.0%} of a core, "
        f"wakes {figures.client.late_p99_ms:.1f} ms late (p99)"
    )


def saturation(levels: Sequence[LevelFigures]) -> str | None:
    """A warning where this client was too busy for its figures to be the server's."""
    bad = [each.label for each in levels if each.is_client_saturated]
    if not bad:
        return None
    return f"warning: at {', '.join(bad)} this client, or its machine, was too busy to measure well"


def _columns() -> Sequence[str]:
    return Spread.__struct_fields__


def _spread_text(spread: Spread | None) -> str:
    values: list[Any] = [getattr(spread, name, None) for name in _columns()]
    return "".join(f"{_ms(value):>10}" for value in values)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= _MANY else f"{value:.1f}"


def _summary_line(figures: LevelFigures) -> str:
    first, between = figures.first_token_ms, figures.between_tokens_ms
    values = [getattr(each, name, None) for each in (first, between) for name in ("p50", "p99")]
    return (
        f"{figures.label:>10}{figures.requests_per_s:>10.2f}"
        f"{figures.output_tokens_per_s:>10,.1f}"
        + "".join(f"{_ms(value):>9}" for value in values)
        + f"{sum(figures.errors.values()):>8,}"
    )
