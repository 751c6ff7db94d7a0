"""Figures of the gateway's replicas for ``/metrics``."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from triptych_gateway.replica import State
from triptych_gateway.replicas import ReplicaSet

_STATES = (*get_args(State), "gone")
_PREFIX = "triptych_gateway"


class FleetCollector(Collector):
    """Reads the sets of replicas when the page is asked for."""

    def __init__(self, sets: Sequence[ReplicaSet[Any]]) -> None:
        self._sets = sets

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            f"{_PREFIX}_replicas", "replicas by panel and state", labels=["panel", "state"]
        )
        outstanding = GaugeMetricFamily(
            f"{_PREFIX}_replica_outstanding",
            "requests (generate: sequences) of this gateway at each replica",
            labels=["panel", "address"],
        )
        retries = CounterMetricFamily(
            f"{_PREFIX}_retries", "attempts after the first, by panel", labels=["panel"]
        )
        resumes = CounterMetricFamily(
            f"{_PREFIX}_resumes",
            "choices that went on at another worker, and replies replayed to another derender",
            labels=["panel"],
        )
        for each in self._sets:
            states = each.states()
            for state in _STATES:
                replicas.add_metric([each.panel, state], states[state])
            for replica in each.replicas:
                outstanding.add_metric([each.panel, replica.address], replica.outstanding)
            retries.add_metric([each.panel], each.num_retries)
            resumes.add_metric([each.panel], each.num_resumes)
        yield from (replicas, outstanding, retries, resumes)
