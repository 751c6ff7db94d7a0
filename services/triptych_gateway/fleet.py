"""The three panels as sets of replicas: links, probes, readiness and metrics."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from triptych.hops import NO_HOPS, Hops
from triptych_gateway.addresses import split_addresses
from triptych_gateway.attempts import Patience
from triptych_gateway.failover import FailoverGenerate
from triptych_gateway.failover_text import Derender, FailoverDerender, FailoverRender
from triptych_gateway.fleet_metrics import FleetCollector
from triptych_gateway.flows import Panels
from triptych_gateway.generate_link import generate_link
from triptych_gateway.health import HealthProbe
from triptych_gateway.links import Closable, GenerateLink, RenderLink
from triptych_gateway.over_grpc import GrpcDerender, GrpcRender
from triptych_gateway.replica import Connection
from triptych_gateway.replicas import ReplicaSet, WatchOptions
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.vocabularies import WithVocabulary

_LinkT = TypeVar("_LinkT")


class Fleet:
    """What ``settings`` name. Links are open, and replicas are watched, inside ``watched``."""

    def __init__(self, settings: GatewaySettings, hops: Hops = NO_HOPS) -> None:
        """``hops``: who this gateway is to the panels, and what it trusts."""
        self._hops = hops
        self._timeout_s = settings.request_timeout_s
        patience = Patience(settings.come_up_timeout_s, settings.take_over_timeout_s)
        options = WatchOptions(
            resolve_every_s=settings.resolve_every_s,
            probe_every_s=settings.probe_every_s,
            hang_timeout_s=settings.hang_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
        )
        self._renders: ReplicaSet[RenderLink] = ReplicaSet(
            "render",
            split_addresses(settings.render),
            connect=self._connect_render,
            options=options,
        )
        self._derenders: ReplicaSet[Derender] = ReplicaSet(
            "derender",
            split_addresses(settings.derender),
            connect=self._connect_derender,
            options=options,
        )
        self._workers: ReplicaSet[GenerateLink] = ReplicaSet(
            "generate",
            split_addresses(settings.generate, may_be_json=True),
            connect=self._connect_generate,
            options=options,
        )
        self._derender = FailoverDerender(self._derenders, patience)
        generate = FailoverGenerate(self._workers, patience)
        self.panels = Panels(FailoverRender(self._renders, patience), generate, self._derender)
        self.collector = FleetCollector((self._renders, self._workers, self._derenders))

    async def is_ready(self) -> bool:
        """At least one replica of each panel is up."""
        return all(each.usable() for each in (self._renders, self._workers, self._derenders))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            watches = [each.watched() for each in (self._renders, self._workers, self._derenders)]
            for watch in watches:
                await stack.enter_async_context(watch)
            yield

    def _connect_render(self, address: str) -> Connection[RenderLink]:
        link = GrpcRender(address, hops=self._hops)
        return _with_health(address, link, link, self._hops)

    def _connect_generate(self, address: str) -> Connection[GenerateLink]:
        worker = generate_link(address, timeout_s=self._timeout_s, hops=self._hops)
        return Connection(WithVocabulary(worker, self._derender), worker.info, worker.close)

    def _connect_derender(self, address: str) -> Connection[Derender]:
        link = GrpcDerender(address, timeout_s=self._timeout_s, hops=self._hops)
        return _with_health(address, link, link, self._hops)


def _with_health(address: str, link: _LinkT, closable: Closable, hops: Hops) -> Connection[_LinkT]:
    health = HealthProbe(address, hops)

    async def close() -> None:
        await health.close()
        await closable.close()

    return Connection(link, health.check, close)
