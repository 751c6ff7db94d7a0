"""The edge of an HTTP service: every request passes it once, on its way in and on its way out."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response
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
from triptych.request_ids import HEADER, MAX_GIVEN, accept_request_id

if TYPE_CHECKING:
    from fastapi.routing import APIRoute
    from opentelemetry.trace import Span

#: Around a request of which only the head was read. Raises what refuses it.
Gate = Callable[[Scope], AbstractContextManager[None]]

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
#: What passes no gate: probes and scrapers have no keys, and the rest says nothing of anyone.
OPEN_PATHS = _QUIET_PATHS | {"/version", "/openapi.json", DOCS_PREFIX}
_SERVER_ERRORS = 500
#: The endpoint of all paths that do not exist.
_UNKNOWN = "unknown"
#: Bytes of a path in the log.
_MAX_LOGGED = 200
#: Methods of requests that are answered while the service drains.
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def open_gate(scope: Scope) -> AbstractContextManager[None]:
    """Let everyone in."""
    return contextlib.nullcontext()


class RequestEdge:
    """ASGI application around a service's app: id, gate, metrics, drain, log line, last error net.

    ``app.state.gate`` is asked before anything but the head of a request is read. POSTs to the
    paths of ``direct`` go straight to their endpoints, which take the request alone: routing and
    dependencies of FastAPI would cost more than the rest of a short request.
    """

    def __init__(
        self,
        app: FastAPI,
        inner: ASGIApp,
        *,
        service: str,
        metrics: Metrics,
        drain: Drain,
        control_paths: frozenset[str],
        open_prefixes: tuple[str, ...],
    ) -> None:
        """``inner``: what answers the paths that are not in ``direct``."""
        self.direct: dict[str, APIRoute] = {}
        self._app = app
        self._inner = inner
        self._metrics = metrics
        self._drain = drain
        self._control_paths = control_paths
        self._open_prefixes = (DOCS_PREFIX + "/", *open_prefixes)
        self._service = service
        self._log = logging.getLogger(f"triptych.{service}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        scope["app"] = self._app
        request_id = accept_request_id(_header(scope, HEADER), max_len=MAX_GIVEN)
        scope["triptych.request_id"] = request_id
        notes: dict[str, Any] = {}
        scope["triptych.notes"] = notes
        scope["triptych.headers"] = {HEADER: request_id}
        is_quiet = scope["path"] in _QUIET_PATHS
        status = 499

        def send_with_headers(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._headers(scope)]
            return send(message)

        start = time.perf_counter()
        span = None if is_quiet else tracing.start(scope["method"], _Headers(scope))
        self._metrics.num_in_flight += not is_quiet
        try:
            with tracing.current(span), self._work(scope), self._gate(scope):
                await self._answer(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = 499
        except (UnavailableError, asyncio.CancelledError):  # the server stops: no room, or no time
            notes["error"] = UnavailableError.code
            await error_response(stopping_error())(scope, receive, send_with_headers)
        except TriptychError as error:  # the gate's
            notes["error"] = error.code or error.type
            await error_response(error)(scope, receive, send_with_headers)
        except Exception:  # noqa: BLE001  # the request edge
            self._log.exception("request %s failed", request_id)
            notes["error"] = InternalError.code
            if status == 499:
                response = error_response(InternalError("internal error; see the server's log"))
                await response(scope, receive, send_with_headers)
            status = 500
        finally:
            self._metrics.num_in_flight -= not is_quiet
            self._finish(scope, status, time.perf_counter() - start)
            self._end_span(span, scope, status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.direct.get(scope["path"]) if scope["method"] == "POST" else None
        if route is None:
            await self._inner(scope, receive, send)
            return
        scope["route"] = route
        try:
            response = await route.endpoint(Request(scope, receive))
        except TriptychError as error:
            response = refusal(scope, error)
        await response(scope, receive, send)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What every answer has beside its own."""
        headers = scope["triptych.headers"].items()
        pairs = [(name.encode(), value.encode()) for name, value in headers]
        return [*pairs, (b"connection", b"close")] if self._drain.is_draining else pairs

    def _work(self, scope: Scope) -> AbstractContextManager[None]:
        """Known to the drain, unless it only reads."""
        is_work = scope["method"] not in READS and scope["path"] not in self._control_paths
        return self._drain.work() if is_work else contextlib.nullcontext()

    def _gate(self, scope: Scope) -> AbstractContextManager[None]:
        path = scope["path"]
        is_open = path in OPEN_PATHS or path.startswith(self._open_prefixes)
        gate: Gate = open_gate if is_open else self._app.state.gate
        return gate(scope)

    def _end_span(self, span: "Span | None", scope: Scope, status: int) -> None:
        if span is None:
            return
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

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = _endpoint(scope)
        error = scope["triptych.notes"].get("error")
        self._metrics.observe(endpoint, str(status), seconds, error)
        if endpoint in _QUIET_PATHS:
            return
        notes = {"id": scope["triptych.request_id"], **scope["triptych.notes"]}
        path = "unknown path" if endpoint == _UNKNOWN else _logged_path(scope)
        facts = {"method": scope["method"], "path": path, "status": status}
        self._log.info(
            "%s %s %d %s%s",
            *facts.values(),
            ms(seconds),
            "".join([f" {name}={value}" for name, value in notes.items()]),
            extra={"facts": {**facts, "ms": round(seconds * 1000, 1), **notes}},
        )


class _Headers(Mapping[str, str]):
    """A request's headers by name, read where somebody asks: with traces off nobody does."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> str:
        if value := _header(self._scope, name):
            return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name, _ in self._scope["headers"])

    def __len__(self) -> int:
        return len(self._scope["headers"])


def _header(scope: Scope, name: str) -> str:
    """The last value of a header, empty if there is none."""
    wanted, found = name.encode(), b""
    for key, value in scope["headers"]:
        if key == wanted:
            found = value
    return found.decode("latin-1")


def _logged_path(scope: Scope) -> str:
    """The path as it was sent, percent signs and all: a space would begin a field of its own."""
    return bytes(scope["raw_path"][:_MAX_LOGGED]).decode("latin-1")


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


def refusal(scope: Scope, error: TriptychError) -> Response:
    """The answer to a request that ends in ``error``, which its log line names."""
    scope["triptych.notes"]["error"] = error.code or error.type
    return error_response(error)


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
