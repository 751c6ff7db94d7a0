"""Running servers: bind everything first, serve until a signal, then stop within a bound."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI

from triptych import logs
from triptych.errors import SetupError
from triptych.rpc import RpcServer
from triptych.settings import ServiceSettings

#: Seconds for requests that were cut off at the shutdown limit to say so to their clients.
_CUT_OFF_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Service:
    """One service, ready to listen: its JSON app, its gRPC server and what lives beside them."""

    name: str
    app: FastAPI
    settings: ServiceSettings
    rpc: RpcServer | None = None
    grpc_port: int = 0
    background: Callable[[], AbstractAsyncContextManager[Any]] = contextlib.nullcontext
    addresses: list[str] = field(default_factory=list)


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


async def serve(
    services: Sequence[Service], *, stop: asyncio.Event, on_ready: Callable[[], None] | None = None
) -> None:
    """Serve until ``stop`` is set, then let running requests end, all services at once.

    Raises:
        SetupError: a port is in use.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(running(each)) for each in services]
        if on_ready is not None:
            on_ready()
        await stop.wait()
        _log.info("stopping")
        await asyncio.gather(*(listener.close() for listener in listeners))


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


class Listener:
    """A service that listens. ``close`` waits for running requests up to the service's limit."""

    def __init__(self, service: Service, http: _Server, listening: asyncio.Task[None]) -> None:
        self._service = service
        self._http = http
        self._listening = listening

    async def close(self) -> None:
        self._http.should_exit = True
        if self._service.rpc is not None:
            await self._service.rpc.stop(self._service.settings.shutdown_timeout_s)
        await self._listening
        if cut_off := self._http.server_state.tasks:
            await asyncio.wait(cut_off, timeout=_CUT_OFF_S)


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Listener]:
    """``service`` listening on its ports; ``service.addresses`` says where.

    Raises:
        SetupError: a port is in use.
    """
    settings = service.settings
    host = _bracketed(settings.host)
    with contextlib.closing(_bind(settings.host, settings.http_port)) as http_socket:
        service.addresses = [f"http://{host}:{http_socket.getsockname()[1]}"]
        if service.rpc is not None:
            grpc_port = service.rpc.bind(host, service.grpc_port)
            service.addresses.append(f"grpc://{host}:{grpc_port}")
        async with service.background():
            http = _Server(_uvicorn_config(service))
            listener = Listener(
                service, http, asyncio.create_task(http.serve(sockets=[http_socket]))
            )
            if service.rpc is not None:
                await service.rpc.start()
            await http.listening.wait()
            try:
                yield listener
            finally:
                await listener.close()


def run_service(start: Callable[[], Service], *, log_level: str) -> int:
    """Build one service inside an event loop and serve it; the whole of a service's main.

    Raises:
        SetupError: it cannot start.
    """
    logs.configure(log_level)

    async def main() -> int:
        stop = stop_on_signals()
        service = start()
        await serve([service], stop=stop, on_ready=lambda: _log_ready(service))
        return 0

    return run_loop(main())


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """The result of ``main`` in a new event loop, uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _log_ready(service: Service) -> None:
    _log.info("%s serves on %s", service.name, "  ".join(service.addresses))


def _uvicorn_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        service.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(service.settings.shutdown_timeout_s)),
        server_header=False,
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SetupError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
