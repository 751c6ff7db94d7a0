"""Prometheus metrics of one service, in a registry of its own: services may share a process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds; from a derender chunk to a long answer.
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


@dataclass(frozen=True, slots=True)
class GaugeSource:
    """A figure that a service reads when it is asked for; ``name`` gets the service's prefix."""

    name: str
    help: str
    read: Callable[[], float]


class Metrics:
    """Requests of one service by endpoint and status, in flight, seconds taken, and its gauges."""

    def __init__(
        self,
        service: str,
        gauges: tuple[GaugeSource, ...] = (),
        collectors: tuple[Collector, ...] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        prefix = f"triptych_{service}"
        self._requests = Counter(
            f"{prefix}_requests",
            "finished requests",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._in_flight = Gauge(
            f"{prefix}_requests_in_flight", "requests being served", registry=self.registry
        )
        self._seconds = Histogram(
            f"{prefix}_request_seconds",
            "seconds from the first byte in to the last byte out",
            ["endpoint"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

        for source in gauges:
            gauge = Gauge(f"{prefix}_{source.name}", source.help, registry=self.registry)
            gauge.set_function(source.read)
        for collector in collectors:
            self.registry.register(collector)

    @contextmanager
    def in_flight(self, *, is_counted: bool) -> Iterator[None]:
        self._in_flight.inc(is_counted)
        try:
            yield
        finally:
            self._in_flight.dec(is_counted)

    def observe(self, endpoint: str, status: str, seconds: float) -> None:
        self._requests.labels(endpoint, status).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self.registry)
