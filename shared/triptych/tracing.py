"""Traces: a span per hop, by OpenTelemetry where it is switched on; free of cost where it is not.

The context (W3C) travels in HTTP headers and gRPC metadata. Spans hold methods, paths, statuses and
request ids, never text, ids of tokens, or the messages of errors.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from triptych.errors import SetupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Attributes = Mapping[str, str | int]


class _Tracing:
    """The process's tracer; there is one, as there is one log."""

    tracer: "Tracer | None" = None
    propagator: "TraceContextTextMapPropagator"


def configure(service: str, endpoint: str | None) -> None:
    """Send spans of ``service`` to the collector at ``endpoint`` (OTLP over HTTP); None: none.

    The SDK's own variables (``OTEL_*``) set the rest, such as sampling.

    Raises:
        SetupError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SetupError(
            "--otlp-endpoint: OpenTelemetry is not installed; try: pip install 'triptych[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"triptych-{service}"}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use(provider)


def use(provider: "TracerProvider | None") -> None:
    """Make spans by ``provider``; None: none."""
    if provider is None:
        _Tracing.tracer = None
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _Tracing.tracer = provider.get_tracer("triptych")
    _Tracing.propagator = TraceContextTextMapPropagator()


def start(name: str, carrier: Mapping[str, str]) -> "Span | None":
    """A span of this end of a hop; its parent is in ``carrier``, the caller's headers by name.

    None where tracing is off.
    """
    if _Tracing.tracer is None:
        return None
    from opentelemetry.trace import SpanKind

    parent = _Tracing.propagator.extract(carrier)
    return _Tracing.tracer.start_span(name, context=parent, kind=SpanKind.SERVER)


def current(span: "Span | None") -> AbstractContextManager[Any]:
    """Around what ``span`` covers: hops that begin inside are its children."""
    if span is None:
        return contextlib.nullcontext()
    from opentelemetry.trace import use_span

    return use_span(span, record_exception=False, set_status_on_exception=False)


def end(span: "Span | None", attributes: Attributes, *, name: str, is_error: bool) -> None:
    """End ``span``, under its last name."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    span.update_name(name)
    span.set_attributes(dict(attributes))
    if is_error:
        span.set_status(StatusCode.ERROR)
    span.end()


def carried() -> tuple[tuple[str, str], ...]:
    """The current span as headers of a hop that begins here."""
    if _Tracing.tracer is None:
        return ()
    carrier: dict[str, str] = {}
    _Tracing.propagator.inject(carrier)
    return tuple(carrier.items())
