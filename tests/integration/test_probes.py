"""What Kubernetes asks of each service, before and during a drain, and what work is told then."""

import asyncio
from pathlib import Path

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.scripted import text_panels
from support.whole_fleet import Fleet, make_generate_model, whole_fleet
from triptych.rpc import open_channel

pytestmark = pytest.mark.model

#: Work of each service.
PATHS = {
    "gateway": "/v1/chat/completions",
    "render": "/v1/chat/completions/render",
    "generate": "/inference/v1/generate",
    "derender": "/v1/chat/completions/derender",
}


class SlowRequest:
    """Work that runs as long as the test wants: a request whose body has not come to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, address: str, path: str) -> "SlowRequest":
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{".encode())
        return cls(reader, writer)

    async def end(self) -> int:
        """The status of the answer."""
        self._writer.write(b"}")
        status = (await self._reader.readline()).split()[1]
        self._writer.close()
        return int(status)


async def until_in_flight(fleet: Fleet, name: str) -> None:
    while f"triptych_{name}_requests_in_flight 1.0" not in await fleet.metrics(name):
        pass


async def grpc_health(fleet: Fleet, name: str) -> int:
    async with open_channel(fleet.grpc(name)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)).status)


async def test_probes_and_work_before_and_during_a_drain(smollm2_dir: Path, tmp_path: Path) -> None:
    texts = text_panels(smollm2_dir, "none")
    async with whole_fleet(texts, make_generate_model(tmp_path)) as fleet:
        for name in PATHS:  # all are ready before one drains
            async with httpx.AsyncClient(base_url=fleet.http(name), timeout=20) as client:
                assert (await client.get("/health")).status_code == 200
                assert (await client.get("/ready")).status_code == 200
        for name, path in PATHS.items():
            await drains_as_kubernetes_expects(fleet, name, path)


async def drains_as_kubernetes_expects(fleet: Fleet, name: str, path: str) -> None:
    listener = fleet.listeners[name]
    running = await SlowRequest.begin(fleet.http(name), path)
    await until_in_flight(fleet, name)
    await listener.begin_drain()
    idle = asyncio.create_task(listener.until_idle())
    async with httpx.AsyncClient(base_url=fleet.http(name), timeout=20) as client:
        assert (await client.get("/ready")).status_code == 503  # no new work, please
        assert (await client.get("/health")).status_code == 200  # and no restart
        assert (await client.get("/metrics")).status_code == 200
        refused = await client.post(path, json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    if name != "gateway":
        assert await grpc_health(fleet, name) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert not idle.done()
    assert await running.end() == 400  # it is answered: an empty object is no request
    await asyncio.wait_for(idle, 20)


async def test_gateway_is_not_ready_without_its_panels(smollm2_dir: Path, tmp_path: Path) -> None:
    texts = text_panels(smollm2_dir, "none")
    async with (
        whole_fleet(texts, make_generate_model(tmp_path)) as fleet,
        httpx.AsyncClient(base_url=fleet.http("gateway"), timeout=20) as client,
    ):
        await fleet.listeners["generate"].close()
        while (await client.get("/ready")).status_code == 200:
            pass
        assert (await client.get("/health")).status_code == 200
