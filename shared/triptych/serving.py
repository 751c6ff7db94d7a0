"""Running servers: bind everything first, serve until a signal, drain, stop within a bound."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI

from triptych import logs, tracing
from triptych.cors import with_cors
from triptych.errors import SetupError
from triptych.event_loop import run_loop
from triptych.hops import NO_HOPS, Hops
from triptych.listening import bind, bracketed
from triptych.rpc import RpcServer
from triptych.settings import ServiceSettings

#: Seconds for requests that were cut off to say so to their clients, and for a door to close.
_CLOSE_S = 1
#: Seconds that a connection stays open between requests: longer than in the pools of proxies
#: (60 in ingress-nginx and in AWS's balancers), whose next request would meet it closing.
_KEEP_ALIVE_S = 75

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Service:
    """One service, ready to listen: its JSON app, its gRPC server and what lives beside them.

    ``hops``: who may call a panel, at both doors. ``died``: set when it cannot go on, so that its
    process ends.
    """

    name: str
    app: FastAPI
    settings: ServiceSettings
    hops: Hops = NO_HOPS
    rpc: RpcServer | None = None
    grpc_port: int = 0
    background: Callable[[], AbstractAsyncContextManager[Any]] = contextlib.nullcontext
    addresses: list[str] = field(default_factory=list)
    died: asyncio.Event = field(default_factory=asyncio.Event)


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, without signal handling: servers share a process here."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class StopSignals:
    """``drain``: end when what runs has ended. ``now``: end at once."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)


def stop_on_signals() -> StopSignals:
    """Events that SIGINT and SIGTERM set: the first one ``drain``, the next one ``now``."""
    signals = StopSignals()

    def take() -> None:
        (signals.now if signals.drain.is_set() else signals.drain).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, take)
    return signals


async def serve(
    services: Sequence[Service],
    *,
    signals: StopSignals,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal or until a service dies, then drain all services and end.

    Raises:
        SetupError: a port is in use, or a service died.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(running(each)) for each in services]
        _spare_what_stays()
        if on_ready is not None:
            on_ready()
        await first_of(signals.drain.wait(), *(each.died.wait() for each in services))
        await _drain(listeners, signals.now)
        await asyncio.gather(*(listener.close() for listener in listeners))
    if dead := [each.name for each in services if each.died.is_set()]:
        raise SetupError(f"{', '.join(dead)} cannot go on; the log says why")


def _spare_what_stays() -> None:
    """Keep what was loaded out of garbage collections: clients saw the 160 ms of a full one."""
    gc.collect()
    gc.freeze()


async def first_of(*waits: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> None:
    """Return when one of ``waits`` has, or after ``timeout_s``; the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in waits]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(listeners: Sequence["Listener"], now: asyncio.Event) -> None:
    """Take no new work, wait for what runs within the limit, and cut off the rest."""
    limit_s = max(listener.drain_timeout_s for listener in listeners)
    _log.info("stopping: requests that run may take %g s more", limit_s)
    for listener in listeners:
        await listener.begin_drain()
    await first_of(_until_idle(listeners), now.wait(), timeout_s=limit_s)
    num_cut_off = sum(listener.cut_off() for listener in listeners)
    if num_cut_off:
        _log.warning("cut off %d requests that still ran", num_cut_off)
        await first_of(_until_idle(listeners), timeout_s=_CLOSE_S)


async def _until_idle(listeners: Sequence["Listener"]) -> None:
    for listener in listeners:
        await listener.until_idle()


class Listener:
    """A service that listens."""

    def __init__(self, service: Service, http: _Server, listening: asyncio.Task[None]) -> None:
        self._rpc = service.rpc
        self._http = http
        self._listening = listening
        self._drains = [service.app.state.drain]
        if service.rpc is not None:
            self._drains.append(service.rpc.drain)
        self.drain_timeout_s = service.settings.drain_timeout_s

    async def begin_drain(self) -> None:
        """Refuse new work; go on answering what only reads, readiness first of all."""
        for drain in self._drains:
            drain.begin()
        if self._rpc is not None:
            await self._rpc.begin_drain()

    async def until_idle(self) -> None:
        for drain in self._drains:
            await drain.until_idle()

    def cut_off(self) -> int:
        """End what still runs with an error; how many these are."""
        return sum(drain.cut_off() for drain in self._drains)

    async def close(self) -> None:
        """Stop listening; what still runs has a moment to end."""
        self._http.should_exit = True
        if self._rpc is not None:
            await self._rpc.stop(_CLOSE_S)
        await self._listening


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Listener]:
    """``service`` listening on its ports; ``service.addresses`` says where.

    Raises:
        SetupError: a port is in use.
    """
    settings = service.settings
    host = bracketed(settings.host)
    with contextlib.closing(bind(settings.host, settings.http_port)) as http_socket:
        scheme = "http" if service.hops.tls is None else "https"
        service.addresses = [f"{scheme}://{host}:{http_socket.getsockname()[1]}"]
        if gate := service.hops.json_gate():
            service.app.state.gate = gate
            service.app.state.needs_key = True
        if service.rpc is not None:
            service.app.state.metrics.registry.register(service.rpc.metrics)
            grpc_port = service.rpc.bind(settings.host, service.grpc_port, service.hops)
            service.addresses.append(f"grpc://{host}:{grpc_port}")
        async with service.background():
            if service.rpc is not None:
                await service.rpc.start()
            http = _Server(_uvicorn_config(service))
            listener = Listener(
                service, http, asyncio.create_task(http.serve(sockets=[http_socket]))
            )
            await http.listening.wait()
            try:
                yield listener
            finally:
                await listener.close()


def run_service(start: Callable[[], Service], settings: ServiceSettings) -> int:
    """Build one service inside an event loop and serve it; the whole of a service's main.

    Raises:
        SetupError: it cannot start, or it died.
    """
    logs.configure(settings.log_level, settings.log_format)

    async def main() -> int:
        signals = stop_on_signals()
        service = start()
        tracing.configure(service.name, settings.otlp_endpoint)
        await serve([service], signals=signals, on_ready=lambda: _log_ready(service))
        return 0

    return run_loop(main())


def _log_ready(service: Service) -> None:
    _log.info("%s serves on %s", service.name, "  ".join(service.addresses))


def _uvicorn_config(service: Service) -> uvicorn.Config:
    tls = service.hops.tls
    return uvicorn.Config(
        with_cors(service.app, service.settings.cors_origins),
        ssl_certfile=None if tls is None else tls.cert,
        ssl_keyfile=None if tls is None else tls.key,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_S,
        server_header=False,
    )


def check_ports(settings: ServiceSettings) -> None:
    """Fail before a model is loaded where a port of ``settings`` is in use.

    Raises:
        SetupError: with the first of them.
    """
    for name, port in settings:
        if name.endswith("_port") and port:
            bind(settings.host, port).close()
