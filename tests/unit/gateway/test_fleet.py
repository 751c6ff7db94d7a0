"""The gateway over the fleet that its settings name: readiness, refusals and figures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.fake_fleet import FakeWorker, Fault, fake_workers, unreachable
from support.net import http_client, listening
from support.stack import free_ports
from triptych.errors import UnavailableError
from triptych.http import create_app
from triptych.rpc import RpcServer
from triptych.wire import GenerateRequest, SamplingParams
from triptych_gateway.attempts import Patience
from triptych_gateway.failover import FailoverGenerate
from triptych_gateway.fleet import Fleet
from triptych_gateway.fleet_metrics import FleetCollector
from triptych_gateway.health import HealthProbe
from triptych_gateway.http import create_gateway_app
from triptych_gateway.settings import GatewaySettings


@asynccontextmanager
async def fleet_of(*ports: int) -> AsyncIterator[tuple[Fleet, httpx.AsyncClient]]:
    """A gateway over one render, generate and derender at ``ports``."""
    render, generate, derender = (f"127.0.0.1:{port}" for port in ports)
    settings = GatewaySettings(
        render=render, generate=generate, derender=derender, come_up_timeout_s=0.2
    )
    fleet = Fleet(settings)
    app = create_gateway_app(
        fleet.panels,
        max_body_bytes=1000,
        is_ready=fleet.is_ready,
        collectors=(fleet.collector,),
    )
    async with fleet.watched(), http_client(app) as client:
        yield fleet, client


async def test_fleet_that_nobody_serves_is_not_ready_and_refuses() -> None:
    async with fleet_of(*free_ports(3)) as (_, client):
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        answer = await client.post("/v1/chat/completions", json={"messages": []})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await client.get("/v1/models")).status_code == 503
        page = (await client.get("/metrics")).text
    for panel in ("render", "generate", "derender"):
        assert f'triptych_gateway_replicas{{panel="{panel}",state="down"}} 1.0' in page
        assert f'triptych_gateway_replicas{{panel="{panel}",state="up"}} 0.0' in page


async def test_health_probe_tells_serving_from_draining_and_from_nobody() -> None:
    server = RpcServer(["triptych.v1.RenderService"])
    app = create_app("render", model=("m", None))
    async with listening(app, server) as service:
        probe = HealthProbe(service.addresses[1].removeprefix("grpc://"))
        await probe.check()
        await server.begin_drain()
        with pytest.raises(UnavailableError, match="does not serve"):
            await probe.check()
    with pytest.raises(UnavailableError):
        await probe.check()
    await probe.close()


async def test_figures_count_outstanding_sequences_retries_and_resumes() -> None:
    worker = FakeWorker("a", faults=[Fault(1, unreachable()), Fault(1, is_silence=True)])
    params = SamplingParams(n=1, seed=1, max_tokens=4)
    registry = CollectorRegistry()
    async with fake_workers(worker) as replicas:
        registry.register(FleetCollector((replicas,)))
        link = FailoverGenerate(replicas, Patience(0, 9))
        answer = link.generate(GenerateRequest(token_ids=[1], sampling_params=params))
        for _ in range(2):
            async with asyncio.timeout(9):
                await anext(answer)
        page = generate_latest(registry).decode()
        await answer.aclose()
    for line in (
        'triptych_gateway_replica_outstanding{address="a",panel="generate"} 1.0',
        'triptych_gateway_retries_total{panel="generate"} 1.0',
        'triptych_gateway_resumes_total{panel="generate"} 1.0',
    ):
        assert line in page
