"""Prometheus metrics of one service, in a registry of its own: services may share a process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_MetricT = TypeVar("_MetricT", Counter, Histogram)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds; from a derender chunk to a long answer.
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


@dataclass(frozen=True, slots=True)
class GaugeSource:
    """A figure that a service reads when it is asked for; ``name`` gets the service's prefix."""

    name: str
    help: str
    read: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Count:
    """A figure that only grows, likewise; ``_total`` is added to its name."""

    name: str
    help: str
    read: Callable[[], float]


class ReadCounts(Collector):
    """Counters of ``service`` that are read when they are asked for."""

    def __init__(self, service: str, counts: tuple[Count, ...]) -> None:
        self._service = service
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for count in self._counts:
            name = f"triptych_{self._service}_{count.name}"
            yield CounterMetricFamily(name, count.help, value=count.read())


class Labelled(dict[tuple[str, ...], _MetricT]):
    """The children of a metric by their labels: finding one anew takes longer than counting."""

    def __init__(self, metric: _MetricT) -> None:
        super().__init__()
        self._metric: Any = metric

    def __missing__(self, labels: tuple[str, ...]) -> _MetricT:
        child: _MetricT = self._metric.labels(*labels)
        self[labels] = child
        return child


class CallMetrics(Collector):
    """gRPC calls of one service: how long, by method, and how many are being served."""

    def __init__(self, service: str, *, num_in_flight: Callable[[], float]) -> None:
        self._seconds = Histogram(
            f"triptych_{service}_call_seconds",
            "seconds of a gRPC call's work",
            ["method"],
            buckets=_BUCKETS,
            registry=None,
        )
        self._children = Labelled(self._seconds)
        self._in_flight = Gauge(
            f"triptych_{service}_calls_in_flight", "gRPC calls being served", registry=None
        )
        self._in_flight.set_function(num_in_flight)

    def call_ended(self, method: str, *, seconds: float) -> None:
        self._children[(method,)].observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self._seconds.collect()
        yield from self._in_flight.collect()


class Metrics:
    """Requests of one service by endpoint and status, in flight, seconds, errors, and its gauges.

    Labels are paths that the service declares, statuses, and codes of the error tree.
    ``num_in_flight``: requests being served.
    """

    def __init__(
        self,
        service: str,
        gauges: tuple[GaugeSource, ...] = (),
        collectors: tuple[Collector, ...] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        prefix = f"triptych_{service}"
        self._requests = Labelled(
            Counter(
                f"{prefix}_requests",
                "finished requests",
                ["endpoint", "status"],
                registry=self.registry,
            )
        )
        self.num_in_flight = 0
        in_flight = Gauge(
            f"{prefix}_requests_in_flight", "requests being served", registry=self.registry
        )
        in_flight.set_function(lambda: self.num_in_flight)
        self._seconds = Labelled(
            Histogram(
                f"{prefix}_request_seconds",
                "seconds from the first byte in to the last byte out",
                ["endpoint"],
                buckets=_BUCKETS,
                registry=self.registry,
            )
        )
        self._errors = Labelled(
            Counter(
                f"{prefix}_errors",
                "requests that ended in an error",
                ["code"],
                registry=self.registry,
            )
        )
        for source in gauges:
            gauge = Gauge(f"{prefix}_{source.name}", source.help, registry=self.registry)
            gauge.set_function(source.read)
        for collector in collectors:
            self.registry.register(collector)

    def observe(self, endpoint: str, status: str, seconds: float, error: str | None = None) -> None:
        """Count a finished request; ``error`` is the code of what it ended in."""
        self._requests[endpoint, status].inc()
        self._seconds[(endpoint,)].observe(seconds)
        if error is not None:
            self._errors[(error,)].inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)
