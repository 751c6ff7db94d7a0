"""The edge of an HTTP service: every request passes it once, on its way in and on its way out."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych import tracing
from triptych.api_docs import DOCS_PREFIX
from triptych.drain import Drain, stopping_error
from triptych.errors import (
    InternalError,
    TriptychError,
    UnauthenticatedError,
    UnavailableError,
)
from triptych.logs import ms
from triptych.metrics import Metrics
from triptych.request_ids import HEADER, accept_request_id

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: Around a request of which only the head was read. Raises what refuses it.
Gate = Callable[[Scope], AbstractContextManager[None]]

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
#: What passes no gate: probes and scrapers have no keys, and the rest says nothing of anyone.
OPEN_PATHS = _QUIET_PATHS | {"/version", "/openapi.json", DOCS_PREFIX}
_SERVER_ERRORS = 500
#: The endpoint of all paths that do not exist.
_UNKNOWN = "unknown"
#: Methods of requests that are answered while the service drains.
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def open_gate(scope: Scope) -> AbstractContextManager[None]:
    """Let everyone in."""
    return contextlib.nullcontext()


class RequestEdge:
    """ASGI middleware: id, gate, metrics, drain, the request's log line, the last error net.

    ``app.state.gate`` is asked before anything but the head of a request is read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: str,
        metrics: Metrics,
        drain: Drain,
        control_paths: frozenset[str],
        open_prefixes: tuple[str, ...],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._drain = drain
        self._control_paths = control_paths
        self._open_prefixes = open_prefixes
        self._service = service
        self._log = logging.getLogger(f"triptych.{service}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = scope["triptych.request_id"] = accept_request_id(headers.get(HEADER))
        scope["triptych.notes"] = {}
        scope["triptych.headers"] = {HEADER: request_id}
        status = 499

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    *(
                        (name.encode(), value.encode())
                        for name, value in scope["triptych.headers"].items()
                    ),
                    *([(b"connection", b"close")] if self._drain.is_draining else ()),
                ]
            await send(message)

        start = time.perf_counter()
        span = None if scope["path"] in _QUIET_PATHS else tracing.start(scope["method"], headers)
        try:
            with tracing.current(span), self._passage(scope):
                await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = 499
        except (UnavailableError, asyncio.CancelledError):  # the server stops: no room, or no time
            scope["triptych.notes"]["error"] = UnavailableError.code
            await error_response(stopping_error())(scope, receive, send_with_headers)
        except TriptychError as error:  # the gate's
            scope["triptych.notes"]["error"] = error.code or error.type
            await error_response(error)(scope, receive, send_with_headers)
        except Exception:  # noqa: BLE001  # the request edge
            self._log.exception("request %s failed", request_id)
            scope["triptych.notes"]["error"] = InternalError.code
            if status == 499:
                response = error_response(InternalError("internal error; see the server's log"))
                await response(scope, receive, send_with_headers)
            status = 500
        finally:
            self._finish(scope, status, time.perf_counter() - start)
            self._end_span(span, scope, status)

    def _end_span(self, span: "Span | None", scope: Scope, status: int) -> None:
        endpoint = _endpoint(scope)
        attributes = {
            "triptych.service": self._service,
            "triptych.request_id": scope["triptych.request_id"],
            "http.request.method": scope["method"],
            "http.response.status_code": status,
            "http.route": endpoint,
        }
        name = f"{scope['method']} {endpoint}"
        tracing.end(span, attributes, name=name, is_error=status >= _SERVER_ERRORS)

    @contextlib.contextmanager
    def _passage(self, scope: Scope) -> Iterator[None]:
        """Around the request itself: counted, known to the drain, let in by the gate."""
        path = scope["path"]
        is_work = scope["method"] not in READS and path not in self._control_paths
        is_open = path in OPEN_PATHS or path.startswith((DOCS_PREFIX + "/", *self._open_prefixes))
        gate = open_gate if is_open else scope["app"].state.gate
        with (
            self._metrics.in_flight(is_counted=path not in _QUIET_PATHS),
            self._drain.work() if is_work else contextlib.nullcontext(),
            gate(scope),
        ):
            yield

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = _endpoint(scope)
        error = scope["triptych.notes"].get("error")
        self._metrics.observe(endpoint, str(status), seconds, error)
        if endpoint in _QUIET_PATHS:
            return
        notes = {"id": scope["triptych.request_id"], **scope["triptych.notes"]}
        path = "unknown path" if endpoint == _UNKNOWN else scope["path"]
        facts = {"method": scope["method"], "path": path, "status": status}
        self._log.info(
            "%s %s %d %s%s",
            *facts.values(),
            ms(seconds),
            "".join(f" {name}={value}" for name, value in notes.items()),
            extra={"facts": {**facts, "ms": round(seconds * 1000, 1), **notes}},
        )


def _endpoint(scope: Scope) -> str:
    """The path as it was declared; one name for all that were not."""
    if route := scope.get("route"):
        return str(route.path)
    declared = {getattr(each, "path", None) for each in scope["app"].routes}
    return scope["path"] if scope["path"] in declared else _UNKNOWN


def request_id(request: Request) -> str:
    return str(request.scope["triptych.request_id"])


def note(request: Request, /, **notes: Any) -> None:
    """Add ``notes`` to the request's one log line. Never text or ids of a prompt or an output."""
    request.scope["triptych.notes"].update(notes)


def error_response(error: TriptychError) -> Response:
    headers = {}
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return Response(
        msgspec.json.encode(error.body()),
        status_code=error.http_status,
        media_type="application/json",
        headers=headers,
    )
