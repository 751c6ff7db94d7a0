"""gRPC plumbing that every service shares: servers, channels, error mapping, health, reflection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from triptych import tracing
from triptych.channel import CarryingChannel
from triptych.drain import Drain
from triptych.errors import SetupError, TriptychError, UnauthenticatedError, UnavailableError
from triptych.hops import AUTHORIZATION, NO_HOPS, Hops
from triptych.http2_stream import ServerStream
from triptych.metrics import CallMetrics
from triptych.request_ids import HEADER
from triptych.rpc_edge import Call, abort_call, current_call
from triptych.rpc_errors import from_rpc_error
from triptych.rpc_options import KEEP_ALIVE, RECONNECT, SIZES
from triptych.rpc_port import Backend, RpcPort
from triptych.served_session import ServedSession
from triptych.sessions import SessionKind

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class RpcServer:
    """A grpc.aio server with health and reflection; ``services`` are full names.

    Sessions of the ``kinds`` that were added are served without it where they have a connection of
    their own. ``metrics``: calls by method and work in progress, under no registry yet.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._door = RpcDoor()
        options = [*SIZES, *KEEP_ALIVE]
        self.server = grpc.aio.server(options=options, interceptors=(self._door,))
        self.drain = Drain(self._note_end)
        self.metrics = CallMetrics(
            services[0].rpartition(".")[2].removesuffix("Service").lower(),
            num_in_flight=lambda: self.drain.num_working,
        )
        self._kinds: dict[str, SessionKind] = {}
        self._port: RpcPort | None = None
        self._backend: Backend | None = None
        self._health = health.aio.HealthServicer()
        self._services = tuple(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    def add_sessions(self, kind: SessionKind) -> None:
        """Serve them; to be called before ``bind``."""
        self._kinds[kind.path] = kind

    def bind(self, host: str, port: int, hops: Hops = NO_HOPS) -> int:
        """The port that was bound; ``hops`` say who may call there.

        Raises:
            SetupError: it is in use or not allowed.
        """
        self._door.hops = hops
        self._port = RpcPort(self._new_stream if self._kinds else None)
        tls = None if hops.tls is None else hops.tls.server_context()
        return self._port.bind(host, port, tls)

    def _new_stream(self) -> ServerStream:
        return ServedSession(self._kinds, self._door.hops, self.drain).stream

    def _note_end(self, seconds: float) -> None:
        self.metrics.call_ended(current_call.get().method, seconds=seconds)

    async def start(self) -> None:
        """Take calls at the port that was bound.

        Raises:
            SetupError: no socket can be made in the directory for temporary files.
        """
        assert self._port is not None, "a server is bound before it starts"
        try:
            self._backend = Backend()
            self.server.add_insecure_port(f"unix:{self._backend.path}")
        except (OSError, RuntimeError) as error:
            if self._backend is not None:
                self._backend.close()
            raise SetupError(f"cannot make a socket in TMPDIR, or in /tmp: {error}") from error
        await self.server.start()
        self._backend.hide()
        await self._port.start(self._backend)
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def begin_drain(self) -> None:
        """Refuse new work; the health service says NOT_SERVING."""
        self.drain.begin()
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """End every call and every connection; those that run have ``grace_s``."""
        await self.begin_drain()
        closing = [self.server.stop(grace_s)]
        if self._port is not None:
            closing.append(self._port.close(grace_s))
        await asyncio.gather(*closing)
        if self._backend is not None:
            self._backend.close()


def open_channel(target: str, hops: Hops = NO_HOPS) -> grpc.aio.Channel:
    """A channel to ``target`` (host:port), where ``hops`` say who this end is.

    Its calls carry that, and the trace that they belong to.
    """
    options = [*SIZES, *KEEP_ALIVE, *RECONNECT]
    if hops.tls is None:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        if hops.tls_name is not None:
            options.append(("grpc.ssl_target_name_override", hops.tls_name))
        credentials = hops.tls.channel_credentials()
        channel = grpc.aio.secure_channel(target, credentials, options=options)
    return CarryingChannel(channel, lambda: (*hops.credentials, *tracing.carried()))


def call_metadata(request_id: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata((HEADER, request_id))


class RpcDoor(grpc.aio.ServerInterceptor):
    """Lets those in who know the hop secret; probes of health have no secret."""

    def __init__(self) -> None:
        self.hops = NO_HOPS

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        path = handler_call_details.method
        metadata = {key: str(value) for key, value in handler_call_details.invocation_metadata}
        current_call.set(Call(path, metadata))
        if not path.startswith(f"/{health.SERVICE_NAME}/"):
            try:
                self.hops.check(metadata.get(AUTHORIZATION, ""))
            except UnauthenticatedError as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: TriptychError) -> "_Handler":
    """Ends a call of any kind with ``error``, before any message is read."""

    async def refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort_call(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


class RpcErrors:
    """``async with RpcErrors(target):`` raises a failed call as the server's own error."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            raise from_rpc_error(error, self._target) from error
        if isinstance(error, asyncio.InvalidStateError):  # what writing to an ended call raises
            raise UnavailableError(f"{self._target} ended the call", retry_after_s=1) from error
