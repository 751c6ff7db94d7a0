"""gRPC plumbing that every service shares: servers, channels, error mapping, health, reflection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc
import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from triptych import tracing
from triptych.channel import CarryingChannel
from triptych.drain import Drain, stopping_error
from triptych.errors import (
    ErrorBody,
    InternalError,
    SetupError,
    TriptychError,
    UnauthenticatedError,
    UnavailableError,
)
from triptych.hops import AUTHORIZATION, NO_HOPS, Hops
from triptych.metrics import CallMetrics
from triptych.request_ids import HEADER, accept_request_id
from triptych.rpc_errors import ERROR_KEY, RETRY_KEY, from_rpc_error
from triptych.rpc_options import KEEP_ALIVE, RECONNECT, SIZES

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: Bytes of an error's message, which stands twice in the trailers: gRPC takes 8 KiB of them, and
#: ends the call with RESOURCE_EXHAUSTED where there are more.
_MAX_MESSAGE_BYTES = 1500
#: Calls that carry no request of their own: no span.
_SPANLESS = frozenset({"GetInfo", "GetTokenizerInfo", "Session"})

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call is known by: its path, ``/package.Service/Method``, and its metadata."""

    path: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


_NO_CALL = _Call()
#: The call that the current task serves.
_current: ContextVar[_Call] = ContextVar("call", default=_NO_CALL)

_log = logging.getLogger(__name__)


class RpcServer:
    """A grpc.aio server with health and reflection; ``services`` are full names.

    ``metrics``: calls by method and work in progress, under no registry yet.
    """

    def __init__(self, services: Sequence[str]) -> None:
        options = [*SIZES, *KEEP_ALIVE, ("grpc.so_reuseport", 0)]
        self._door = RpcDoor()
        self.server = grpc.aio.server(options=options, interceptors=(self._door,))
        self.drain = Drain(self._note_end)
        self.metrics = CallMetrics(
            services[0].rpartition(".")[2].removesuffix("Service").lower(),
            num_in_flight=lambda: self.drain.num_working,
        )
        self._health = health.aio.HealthServicer()
        self._services = tuple(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    def bind(self, host: str, port: int, hops: Hops = NO_HOPS) -> int:
        """The port that was bound; ``hops`` say who may call there.

        Raises:
            SetupError: it is in use or not allowed.
        """
        self._door.hops = hops
        address = f"{host}:{port}"
        try:
            if hops.tls is None:
                return self.server.add_insecure_port(address)
            return self.server.add_secure_port(address, hops.tls.server_credentials())
        except RuntimeError as error:
            raise SetupError(f"cannot listen for gRPC on {host}:{port}: in use?") from error

    def _note_end(self, seconds: float) -> None:
        self.metrics.call_ended(_current.get().method, seconds=seconds)

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


def caller_request_id(context: grpc.aio.ServicerContext[Any, Any], given: str = "") -> str:
    """The request id of a call: from its message, else its metadata, else a new one."""
    if given:
        return accept_request_id(given)
    for key, value in context.invocation_metadata() or ():
        if key == HEADER and isinstance(value, str):
            return accept_request_id(value)
    return accept_request_id(None)


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
        _current.set(_Call(path, metadata))
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


class RpcEdge:
    """``async with RpcEdge(context, drain):`` ends the call with the status its body raises.

    Its body is work: refused while the server drains, cut off when that takes too long, and a span
    of the caller's trace.
    A class, not a generator: its ``__aexit__`` is typed to swallow nothing.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], drain: Drain) -> None:
        self._context = context
        self._drain = drain
        self._work = drain.work()
        self._call = _current.get()
        self._span: Span | None = None

    async def __aenter__(self) -> None:
        try:
            self._work.__enter__()
        except UnavailableError as error:
            await abort_call(self._context, error)
        if self._call.method not in _SPANLESS:
            self._span = tracing.start(self._call.method, self._call.metadata)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._work.__exit__(None, None, None)
        request_id = self._call.metadata.get(HEADER, "")
        _end_span(self._span, request_id, is_error=isinstance(error, Exception))
        if isinstance(error, TriptychError):
            await abort_call(self._context, error)
        if isinstance(error, asyncio.CancelledError) and self._drain.has_cut_off:
            await abort_call(self._context, stopping_error())
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            _log.error("a call failed", exc_info=error)
            await abort_call(self._context, InternalError("internal error; see the server's log"))


@contextmanager
def traced_request(request_id: str, trace: Mapping[str, str]) -> Iterator[None]:
    """Around a request of a session: a span whose parent is in ``trace``, by header."""
    is_error = False
    span = tracing.start("request", trace)
    try:
        yield
    except Exception:
        is_error = True
        raise
    finally:
        _end_span(span, request_id, is_error=is_error)


def _end_span(span: "Span | None", request_id: str, *, is_error: bool) -> None:
    name = _current.get().path.lstrip("/")
    attributes = {"rpc.system": "grpc", "rpc.method": name, "triptych.request_id": request_id}
    tracing.end(span, attributes, name=name, is_error=is_error)


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


async def abort_call(context: grpc.aio.ServicerContext[Any, Any], error: TriptychError) -> NoReturn:
    message = error.message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    detail = msgspec.structs.replace(error.body().error, message=message)
    body = msgspec.json.encode(ErrorBody(error=detail))
    trailers: list[tuple[str, str | bytes]] = [(ERROR_KEY, body)]
    if error.retry_after_s is not None:
        trailers.append((RETRY_KEY, f"{error.retry_after_s:g}"))
    status = grpc.StatusCode[error.grpc_code]
    await context.abort(status, message, trailing_metadata=tuple(trailers))
