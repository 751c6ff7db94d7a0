"""Services on real sockets inside a test's own event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from triptych.rpc import RpcServer
from triptych.serving import Service, running
from triptych.settings import ServiceSettings


@asynccontextmanager
async def listening(app: FastAPI, rpc: RpcServer | None = None) -> AsyncIterator[Service]:
    """``app`` (and ``rpc``) on free ports of the loopback address."""
    settings = ServiceSettings(http_port=0, drain_timeout_s=1)
    service = Service(name="test", app=app, settings=settings, rpc=rpc)
    async with running(service):
        yield service


@asynccontextmanager
async def http_client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of ``app``, over a real socket."""
    async with (
        listening(app) as service,
        httpx.AsyncClient(base_url=service.addresses[0], timeout=20) as client,
    ):
        yield client
