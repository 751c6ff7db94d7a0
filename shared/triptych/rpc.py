"""gRPC plumbing that every service shares: servers, channels, error mapping, health, reflection."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from triptych.drain import Drain, stopping_error
from triptych.errors import (
    LEAVES,
    DeadlineError,
    ErrorBody,
    InternalError,
    SetupError,
    TriptychError,
    UnavailableError,
)
from triptych.request_ids import HEADER, accept_request_id

#: Bytes; a prompt of a million ids and 20 candidates at 32k positions fit.
MAX_MESSAGE_BYTES = 64 * 2**20

_ERROR_KEY = "triptych-error-bin"
_RETRY_KEY = "retry-after"
_KEEP_ALIVE: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
]
_SIZES: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
#: A server that is back is found within two seconds; one that takes no connection in three is not
#: reachable. gRPC's own values are 120 and 20.
_RECONNECT: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

_log = logging.getLogger(__name__)


class RpcServer:
    """A grpc.aio server with health and reflection; ``services`` are full names."""

    def __init__(self, services: Sequence[str]) -> None:
        options = [*_SIZES, *_KEEP_ALIVE, ("grpc.so_reuseport", 0)]
        self.server = grpc.aio.server(options=options)
        self.drain = Drain()
        self._health = health.aio.HealthServicer()
        self._services = tuple(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    def bind(self, host: str, port: int) -> int:
        """The port that was bound.

        Raises:
            SetupError: it is in use or not allowed.
        """
        try:
            return self.server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise SetupError(f"cannot listen for gRPC on {host}:{port}: in use?") from error

    async def start(self) -> None:
        await self.server.start()
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def begin_drain(self) -> None:
        """Refuse new work; the health service says NOT_SERVING."""
        self.drain.begin()
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        await self.begin_drain()
        await self.server.stop(grace_s)


def open_channel(target: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=[*_SIZES, *_KEEP_ALIVE, *_RECONNECT])


def call_metadata(request_id: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata((HEADER, request_id))


def caller_request_id(context: grpc.aio.ServicerContext[Any, Any], given: str = "") -> str:
    """The request id of a call: from its message, else its metadata, else a new one."""
    if given:
        return accept_request_id(given)
    for key, value in context.invocation_metadata() or ():
        if key == HEADER and isinstance(value, str):
            return accept_request_id(value)
    return accept_request_id(None)


class RpcEdge:
    """``async with RpcEdge(context, drain):`` ends the call with the status its body raises.

    Its body is work: refused while the server drains, and cut off when that takes too long.
    A class, not a generator: its ``__aexit__`` is typed to swallow nothing.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], drain: Drain) -> None:
        self._context = context
        self._drain = drain
        self._work = drain.work()

    async def __aenter__(self) -> None:
        try:
            self._work.__enter__()
        except UnavailableError as error:
            await _abort(self._context, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._work.__exit__(None, None, None)
        if isinstance(error, TriptychError):
            await _abort(self._context, error)
        if isinstance(error, asyncio.CancelledError) and self._drain.has_cut_off:
            await _abort(self._context, stopping_error())
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            _log.error("a call failed", exc_info=error)
            await _abort(self._context, InternalError("internal error; see the server's log"))


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


def from_rpc_error(error: grpc.aio.AioRpcError, target: str) -> TriptychError:
    """The tree's error for ``error``: the server's own if it sent one, else by status code."""
    sent: bytes | None = None
    retry_after_s = None
    for key, value in error.trailing_metadata() or ():
        if key == _ERROR_KEY and isinstance(value, bytes):
            sent = value
        elif key == _RETRY_KEY:
            retry_after_s = float(value)
    code = error.code()
    if sent is not None:
        detail = msgspec.json.decode(sent, type=ErrorBody).error
        leaf = _leaf(code.name, detail.code)
        return leaf(detail.message, param=detail.param, retry_after_s=retry_after_s)
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"{target} is not reachable", retry_after_s=1)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"{target} did not answer in time")
    return _leaf(code.name, None)(f"{target}: {error.details()}")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: TriptychError) -> NoReturn:
    trailers: list[tuple[str, str | bytes]] = [(_ERROR_KEY, msgspec.json.encode(error.body()))]
    if error.retry_after_s is not None:
        trailers.append((_RETRY_KEY, f"{error.retry_after_s:g}"))
    status = grpc.StatusCode[error.grpc_code]
    await context.abort(status, error.message, trailing_metadata=tuple(trailers))


def _leaf(grpc_code: str, code: str | None) -> type[TriptychError]:
    same = [leaf for leaf in LEAVES if leaf.grpc_code == grpc_code]
    exact = [leaf for leaf in same if leaf.code == code]
    return (exact or same or [InternalError])[0]
