"""What bench makes of event streams: counted and timed whatever the cuts."""

import json
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych_cli.bench.answers import Answer, EventReader, refusal, refusal_message
from triptych_cli.bench.figures import LevelFigures, level_figures, spread
from triptych_cli.bench.load import ClientLoad
from triptych_cli.bench.report import level_text, saturation, summary
from triptych_cli.bench.settings import Level

USAGE = {"prompt_tokens": 7, "completion_tokens": 9}


def chunk(**choice: Any) -> dict[str, Any]:
    return {"object": "chunk", "choices": [{"index": 0, **choice}]}


#: Events and whether each holds output.
EVENTS: list[tuple[dict[str, Any], bool]] = [
    (chunk(delta={"role": "assistant", "content": ""}), False),
    (chunk(delta={"content": "ö"}, logprobs={"content": [{"token": "ö"}]}), True),
    (chunk(delta={"reasoning_content": "hm"}), True),
    (chunk(delta={"reasoning": "hm", "content": None}), True),
    (chunk(delta={"tool_calls": [{"index": 0}]}), True),
    (chunk(delta={"tool_calls": []}), False),
    (chunk(text="data: x\n\n", logprobs=None), True),
    (chunk(text="", finish_reason="stop"), False),
    ({"choices": []}, False),
]


def stream_of(events: list[dict[str, Any]], line_end: str) -> bytes:
    framed = [f"data: {json.dumps(event)}{line_end}{line_end}" for event in events]
    return "".join([f": keep-alive{line_end}", *framed, f"data: [DONE]{line_end}"]).encode()


@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=6),
    line_end=st.sampled_from(["\n", "\r\n"]),
    has_usage=st.booleans(),
    cuts=st.lists(st.integers(0, 1200), max_size=12),
)
def test_events_are_read_whatever_the_cuts(
    events: list[tuple[dict[str, Any], bool]], line_end: str, has_usage: bool, cuts: list[int]
) -> None:
    sent = [event for event, _ in events] + ([{"choices": [], "usage": USAGE}] * has_usage)
    stream = stream_of(sent, line_end)
    clock = iter(range(10_000))
    answer = Answer(due=0)
    reader = EventReader(answer, lambda: float(next(clock)))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(edges):
        reader.feed(stream[start:end])
    num_parts = sum(has_output for _, has_output in events)
    assert reader.is_done
    assert answer.error is None
    assert len(answer.times) == num_parts
    assert answer.times == sorted(answer.times)
    assert answer.output_tokens == (9 if has_usage else num_parts)
    assert answer.counted_by == ("usage" if has_usage else "chunks")


def test_ids_are_counted_where_no_usage_comes() -> None:
    answer = Answer(due=0)
    reader = EventReader(answer, lambda: 1.0)
    reader.feed(stream_of([chunk(token_ids=[1, 2]), chunk(token_ids=[3])], "\n"))
    assert (answer.output_tokens, answer.counted_by, len(answer.times)) == (3, "ids", 2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"error": {"code": "unavailable", "type": "server_error"}}', "stream: unavailable"),
        (b'{"error": {"code": 500, "type": "InternalServerError"}}', "stream: InternalServerError"),
        (b"{", "stream: an event that is no JSON of OpenAI's shape"),
        (b'{"choices": 3}', "stream: an event that is no JSON of OpenAI's shape"),
    ],
)
def test_an_error_in_the_stream_is_a_kind(data: bytes, error: str) -> None:
    answer = Answer(due=0)
    EventReader(answer, lambda: 1.0).feed(b"event: error\ndata: " + data + b"\n\n")
    assert answer.error == error


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (429, b'{"error": {"message": "full", "code": "overloaded"}}', "429 overloaded", "full"),
        (400, b'{"error": {"message": "a\\nb", "type": "t", "code": 400}}', "400 t", "a b"),
        (404, b'{"object": "error", "message": "no", "type": "NotFound"}', "404 NotFound", "no"),
        (502, b"<html>\nBad Gateway</html>", "502", "<html> Bad Gateway</html>"),
        (503, b'{"error": "busy"}', "503", "busy"),
        (500, b"", "500", ""),
    ],
)
def test_refusals_have_kinds(status: int, body: bytes, kind: str, message: str) -> None:
    assert refusal(status, body) == kind
    assert refusal_message(status, body) == f"{status} {message}".strip()


def answers() -> list[Answer]:
    """Two good ones of 3 and 2 tokens, and three refused."""
    return [
        Answer(due=10.0, end=11.0, times=[10.2, 10.5, 10.9], usage=(5, 3)),
        Answer(due=10.5, end=12.0, times=[11.5, 11.6], usage=(7, 2)),
        *(Answer(due=11.0, end=11.1, error="429 overloaded") for _ in range(2)),
        Answer(due=9.0, end=9.5, times=[9.1], error="timeout"),
    ]


def figures(client: ClientLoad | None = None) -> LevelFigures:
    return level_figures(Level(concurrency=4), answers(), client or ClientLoad(0.3, 3.0, [0.001]))


def test_figures_of_a_level_are_those_of_a_plain_sum() -> None:
    level = figures()
    assert (level.num_requests, level.num_answers) == (5, 2)
    assert level.errors == {"429 overloaded": 2, "timeout": 1}
    assert level.duration_s == pytest.approx(3.0)
    assert level.requests_per_s == pytest.approx(2 / 3)
    assert level.output_tokens_per_s == pytest.approx(5 / 3)
    assert (level.prompt_tokens_mean, level.output_tokens_mean) == (6.0, 2.5)
    assert level.first_token_ms is not None
    assert level.first_token_ms.mean == pytest.approx(600)
    assert level.between_tokens_ms is not None
    assert level.between_tokens_ms.p50 == pytest.approx(300)
    assert level.per_token_ms is not None
    assert level.per_token_ms.max == pytest.approx(350)
    assert level.end_to_end_ms is not None
    assert level.end_to_end_ms.p50 == pytest.approx(1250)
    assert level.client.cpu_share == pytest.approx(0.1)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(seconds: list[float]) -> None:
    cuts = statistics.quantiles([each * 1000 for each in seconds], n=100, method="inclusive")
    found = spread(seconds)
    assert found is not None
    assert (found.p50, found.p90, found.p99) == pytest.approx((cuts[49], cuts[89], cuts[98]))
    assert found.mean == pytest.approx(statistics.fmean(seconds) * 1000)


@pytest.mark.parametrize(
    ("client", "is_warned"),
    [
        (ClientLoad(0.3, 3.0, [0.001]), False),
        (ClientLoad(2.9, 3.0, [0.001]), True),
        (ClientLoad(0.3, 3.0, [0.001] * 9 + [0.9]), True),
    ],
)
def test_a_saturated_client_is_warned_of(client: ClientLoad, is_warned: bool) -> None:
    warning = saturation([figures(client)])
    assert (warning is not None) == is_warned
    assert warning is None or "at 4 " in warning


def test_text_fits_a_terminal_and_names_every_kind_of_error() -> None:
    nothing = level_figures(
        Level(rate=2.5), [Answer(due=0, end=1, error="timeout")], ClientLoad(0.1, 1.0, [])
    )
    text = "\n".join([level_text(figures()), level_text(nothing), summary([figures(), nothing])])
    assert max(map(len, text.splitlines())) <= 80
    assert "2 x 429 overloaded, 1 x timeout" in text
    assert "5.0" not in text.split("tokens a request")[0].split("\n")[0]
    assert "6.0 of the prompt, 2.5 of the answer, by usage" in text
    assert "2.5/s: 0 answers" in text
