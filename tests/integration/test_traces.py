"""One trace over every hop, on real sockets: gateway, render, generate, derender."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.scripted import TextPanels, text_panels
from support.whole_fleet import make_generate_model, whole_fleet
from triptych import tracing

pytestmark = pytest.mark.model

PROMPT = "the-secret-prompt"
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
CHAT = "/v1/chat/completions"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)


@pytest.fixture(scope="module")
def texts(smollm2_dir: Path) -> TextPanels:
    return text_panels(smollm2_dir, "none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_generate_model(tmp_path_factory.mktemp("model"))


async def traced_chat(
    texts: TextPanels, model: Path, headers: dict[str, str], *, is_stream: bool
) -> httpx.Response:
    message = {"role": "user", "content": PROMPT}
    body = {"messages": [message], "stream": is_stream, "max_tokens": 3}
    async with whole_fleet(texts, model) as fleet, httpx.AsyncClient() as client:
        return await client.post(fleet.http("gateway") + CHAT, json=body, headers=headers)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_hops_of_a_request_are_one_trace_below_its_caller(
    is_stream: bool, texts: TextPanels, model: Path, exporter: InMemorySpanExporter
) -> None:
    headers = {"traceparent": f"00-{CALLER}-{PARENT}-01", "x-request-id": "r-7"}
    answer = await traced_chat(texts, model, headers, is_stream=is_stream)
    assert answer.status_code == 200
    spans = {span.name: span for span in exporter.get_finished_spans()}
    hops = {
        "triptych.v1.RenderService/Session",
        "triptych.v1.GenerateService/Session",
        f"triptych.v1.DerenderService/{'Session' if is_stream else 'DerenderWhole'}",
    }
    assert set(spans) == {f"POST {CHAT}", *hops}
    assert {f"{context_of(span)[0]:032x}" for span in spans.values()} == {CALLER}
    root = spans[f"POST {CHAT}"]
    assert f"{parent_of(root):016x}" == PARENT
    assert {parent_of(spans[hop]) for hop in hops} == {context_of(root)[1]}
    assert {attributes(span)["triptych.request_id"] for span in spans.values()} >= {"r-7"}
    assert attributes(root)["http.response.status_code"] == 200


async def test_spans_hold_no_text(
    texts: TextPanels, model: Path, exporter: InMemorySpanExporter
) -> None:
    await traced_chat(texts, model, {}, is_stream=True)
    written = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "RenderService" in written
    assert "secret" not in written


async def test_request_without_a_caller_begins_a_trace(
    texts: TextPanels, model: Path, exporter: InMemorySpanExporter
) -> None:
    await traced_chat(texts, model, {}, is_stream=False)
    spans = exporter.get_finished_spans()
    assert len({context_of(span)[0] for span in spans}) == 1
    assert [span.name for span in spans if span.parent is None] == [f"POST {CHAT}"]


def context_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
