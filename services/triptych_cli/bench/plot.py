"""A picture of a run: throughput, and percentiles of each latency, level by level."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from triptych_cli.bench.report import Report, asked, heading

_PERCENTILES = {"p50": "#9ecae1", "p90": "#4292c6", "p99": "#08519c"}
_RATE_COLOUR = "#41ab5d"
_TEXT_COLOUR = "#222222"
_FAINT = "#666666"
_LATENCIES = {
    "Time to first token": "first_token_ms",
    "Time between tokens": "between_tokens_ms",
    "End to end": "end_to_end_ms",
}
#: From here on in seconds.
_SECONDS_FROM_MS = 10_000
_MS_PER_S = 1000
_MAX_LABELLED = 6
#: Of all that stands at the left, as a share of the width.
_LEFT = 0.085


def draw(report: Report, path: Path) -> None:
    """Write the picture, in the format that the name of ``path`` says.

    Raises:
        OSError: it cannot be written.
    """
    figure = Figure(figsize=(10, 7), dpi=150, facecolor="white")
    axes = figure.subplots(2, 2).flatten()
    by_rate = report.levels[0].rate is not None
    labels = [f"{each.rate:g}" if by_rate else str(each.concurrency) for each in report.levels]
    _throughput(axes[0], report, labels)
    for panel, (title, field) in zip(axes[1:], _LATENCIES.items(), strict=True):
        _latency(panel, title, [getattr(each, field) for each in report.levels], labels)
    for panel in axes:
        panel.set_xlabel("requests a second" if by_rate else "requests at once", color=_FAINT)
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="upper right", ncols=3, frameon=False, bbox_to_anchor=(0.985, 0.985)
    )
    figure.text(_LEFT, 0.955, heading(report), size=13, weight="bold", color=_TEXT_COLOUR)
    figure.text(_LEFT, 0.925, asked(report), size=9.5, color=_FAINT)
    figure.text(_LEFT, 0.015, _footer(report), size=8, color=_FAINT)
    figure.subplots_adjust(left=_LEFT, right=0.98, top=0.86, bottom=0.105, hspace=0.42, wspace=0.2)
    figure.savefig(path)


def _throughput(panel: Any, report: Report, labels: Sequence[str]) -> None:
    rates = [each.output_tokens_per_s for each in report.levels]
    bars = panel.bar(range(len(rates)), rates, width=0.6, color=_RATE_COLOUR)
    panel.bar_label(bars, [_number(rate) for rate in rates], padding=2, size=8, color=_TEXT_COLOUR)
    _finish(panel, "Throughput", "output tokens per second", labels)


def _latency(panel: Any, title: str, spreads: Sequence[Any], labels: Sequence[str]) -> None:
    longest = max((each.p99 for each in spreads if each is not None), default=0)
    unit, scale = ("seconds", _MS_PER_S) if longest >= _SECONDS_FROM_MS else ("milliseconds", 1)
    width = 0.8 / len(_PERCENTILES)
    for number, (name, colour) in enumerate(_PERCENTILES.items()):
        places = [place + (number - 1) * width for place in range(len(spreads))]
        heights = [getattr(each, name, 0) / scale for each in spreads]
        bars = panel.bar(places, heights, width=width * 0.94, color=colour, label=name)
        if len(spreads) <= _MAX_LABELLED:
            texts = [_number(height) if height else "" for height in heights]
            panel.bar_label(bars, texts, padding=2, size=7, color=_TEXT_COLOUR)
    _finish(panel, title, unit, labels)


def _finish(panel: Any, title: str, unit: str, labels: Sequence[str]) -> None:
    panel.set_title(title, loc="left", size=11, color=_TEXT_COLOUR)
    panel.set_ylabel(unit, color=_FAINT)
    panel.set_xticks(range(len(labels)), labels)
    margin = 1.2 if len(labels) == 1 else 0.6  # one level alone is not as wide as the panel
    panel.set_xlim(-margin, len(labels) - 1 + margin)
    panel.margins(y=0.14)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.spines["bottom"].set_color(_FAINT)
    panel.tick_params(length=0, labelsize=9, colors=_FAINT)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _footer(report: Report) -> str:
    counted = " and ".join(sorted({each.counted_by for each in report.levels}))
    share = max(each.client.cpu_share for each in report.levels)
    errors = sum(sum(each.errors.values()) for each in report.levels)
    text = (
        f"triptych bench {report.triptych}; streamed; tokens counted by {counted}; "
        f"{errors:,} errors; the client used up to {share:.0%} of a core"
    )
    return textwrap.shorten(text, 160, placeholder="…")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
