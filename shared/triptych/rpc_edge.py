"""The edge of a gRPC call: what it is known by, its span, and the status that an error gives it."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
import msgspec

from triptych import tracing
from triptych.drain import Drain, stopping_error
from triptych.errors import ErrorBody, InternalError, TriptychError, UnavailableError
from triptych.request_ids import HEADER, accept_request_id
from triptych.rpc_errors import ERROR_KEY, RETRY_KEY

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: Bytes of an error's message, which stands twice in the trailers: gRPC takes 8 KiB of them, and
#: ends the call with RESOURCE_EXHAUSTED where there are more.
_MAX_MESSAGE_BYTES = 1500
#: Calls that carry no request of their own: no span.
_SPANLESS = frozenset({"GetInfo", "GetTokenizerInfo", "Session"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """What a call is known by: its path, ``/package.Service/Method``, and its metadata."""

    path: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


_NO_CALL = Call()
#: The call that the current task serves.
current_call: ContextVar[Call] = ContextVar("call", default=_NO_CALL)


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

    Its body is work: refused while the server drains, cut off when that takes too long, and a span
    of the caller's trace.
    A class, not a generator: its ``__aexit__`` is typed to swallow nothing.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], drain: Drain) -> None:
        self._context = context
        self._drain = drain
        self._work = drain.work()
        self._call = current_call.get()
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
    name = current_call.get().path.lstrip("/")
    attributes = {"rpc.system": "grpc", "rpc.method": name, "triptych.request_id": request_id}
    tracing.end(span, attributes, name=name, is_error=is_error)


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ends in an error."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


def status_of(error: TriptychError) -> Status:
    message = error.message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    detail = msgspec.structs.replace(error.body().error, message=message)
    body = msgspec.json.encode(ErrorBody(error=detail))
    trailers: list[tuple[str, str | bytes]] = [(ERROR_KEY, body)]
    if error.retry_after_s is not None:
        trailers.append((RETRY_KEY, f"{error.retry_after_s:g}"))
    return Status(grpc.StatusCode[error.grpc_code], message, tuple(trailers))


async def abort_call(context: grpc.aio.ServicerContext[Any, Any], error: TriptychError) -> NoReturn:
    status = status_of(error)
    await context.abort(status.code, status.message, trailing_metadata=status.trailers)
