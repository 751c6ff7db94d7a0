"""HTTP plumbing that every service shares: the app with its common endpoints, errors and bodies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.drain import Drain, stopping_error
from triptych.errors import (
    BodyTooLargeError,
    ClientGoneError,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    ModelNotFoundError,
    NotFoundError,
    TriptychError,
    UnavailableError,
)
from triptych.logs import ms
from triptych.metrics import CONTENT_TYPE, GaugeSource, Metrics
from triptych.request_ids import HEADER, accept_request_id

_T = TypeVar("_T")

#: Name and context length (tokens) of the served model.
ModelFacts = tuple[str, int | None]

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
#: Methods of requests that are answered while the service drains.
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def create_app(
    service: str,
    *,
    description: str,
    model: ModelFacts | Callable[[], Awaitable[ModelFacts]],
    is_alive: Callable[[], bool] = lambda: True,
    is_ready: Callable[[], Awaitable[bool]] | None = None,
    guard: Callable[[Request], Awaitable[None]] | None = None,
    gauges: tuple[GaugeSource, ...] = (),
    collectors: tuple[Collector, ...] = (),
    control_paths: frozenset[str] = frozenset(),
) -> FastAPI:
    """An app with health, readiness, metrics, version, models, request ids and error mapping.

    Args:
        service: its name, in titles, logs and metrics.
        description: one sentence for the OpenAPI page.
        model: name and context length of the served model, or where to ask for them.
        is_alive: False ends ``/health`` and ``/ready`` in 503.
        is_ready: whether requests can be served now.
        guard: a dependency that refuses callers of ``/v1/models`` and what is below it.
        gauges: figures of the service for ``/metrics``, read when they are asked for.
        collectors: counters and histograms of the service, under no registry yet.
        control_paths: what is answered while the service drains, beside all that only reads.
    """
    app = FastAPI(title=f"triptych {service}", description=description, version=_version())
    metrics = Metrics(service, gauges, collectors)
    app.state.drain = drain = Drain()
    app.add_middleware(
        RequestEdge, service=service, metrics=metrics, drain=drain, control_paths=control_paths
    )
    app.add_exception_handler(TriptychError, _on_triptych_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    started = int(time.time())

    @app.get("/health", summary="Is the process alive?")
    async def health() -> Response:
        return Response(status_code=200 if is_alive() else 503)

    @app.get("/ready", summary="Can it serve?")
    async def ready() -> Response:
        can_serve = not drain.is_draining and is_alive()
        can_serve = can_serve and (is_ready is None or await is_ready())
        return Response(status_code=200 if can_serve else 503)

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics_page() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/version", summary="Version of triptych")
    async def version_page() -> dict[str, str]:
        return {"version": _version()}

    guarded = [Depends(guard or _everyone)]

    @app.get("/v1/models", summary="The served models", dependencies=guarded)
    async def models() -> dict[str, Any]:
        served = await model() if callable(model) else model
        return {"object": "list", "data": [_model_entry(served, started)]}

    @app.get("/v1/models/{name:path}", summary="The served model", dependencies=guarded)
    async def one_model(name: str) -> dict[str, Any]:
        served = await model() if callable(model) else model
        if name != served[0]:
            raise ModelNotFoundError(
                f"The model `{name[:100]}` does not exist; this server has `{served[0]}`",
                param="model",
            )
        return _model_entry(served, started)

    return app


def _model_entry(model: ModelFacts, started: int) -> dict[str, Any]:
    name, max_model_len = model
    return {
        "id": name,
        "object": "model",
        "created": started,
        "owned_by": "triptych",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
    }


class RequestEdge:
    """ASGI middleware: request id, metrics, drain, the request's log line, the last error net."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: str,
        metrics: Metrics,
        drain: Drain,
        control_paths: frozenset[str],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._drain = drain
        self._control_paths = control_paths
        self._log = logging.getLogger(f"triptych.{service}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(HEADER.encode(), b"").decode("latin-1")
        request_id = scope["triptych.request_id"] = accept_request_id(given)
        notes: dict[str, Any] = {}
        scope["triptych.notes"] = notes
        status = 499

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (HEADER.encode(), request_id.encode()),
                    *([(b"connection", b"close")] if self._drain.is_draining else ()),
                ]
            await send(message)

        start = time.perf_counter()
        try:
            with (
                self._metrics.in_flight(is_counted=scope["path"] not in _QUIET_PATHS),
                self._drain.work() if self._is_work(scope) else contextlib.nullcontext(),
            ):
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = 499
        except (UnavailableError, asyncio.CancelledError):  # the server stops: no room, or no time
            await error_response(stopping_error())(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001  # the request edge
            self._log.exception("request %s failed", request_id)
            if status == 499:
                response = error_response(InternalError("internal error; see the server's log"))
                await response(scope, receive, send_with_id)
            status = 500
        finally:
            self._finish(scope, status, request_id, time.perf_counter() - start)

    def _is_work(self, scope: Scope) -> bool:
        return scope["method"] not in _READS and scope["path"] not in self._control_paths

    def _finish(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        route = scope.get("route")
        endpoint = getattr(route, "path", "unknown")
        self._metrics.observe(endpoint, str(status), seconds)
        if endpoint in _QUIET_PATHS:
            return
        notes = "".join(f" {name}={value}" for name, value in scope["triptych.notes"].items())
        path = scope["path"] if route else "unknown path"
        self._log.info(
            "%s %s %d %s id=%s%s", scope["method"], path, status, ms(seconds), request_id, notes
        )


def request_id(request: Request) -> str:
    return str(request.scope["triptych.request_id"])


def note(request: Request, /, **notes: Any) -> None:
    """Add ``notes`` to the request's one log line. Never text or ids of a prompt or an output."""
    request.scope["triptych.notes"].update(notes)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The request's body.

    Raises:
        BodyTooLargeError: it is over ``max_bytes``; no more than that is ever held.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(len(body), max_bytes)
    return bytes(body)


def decode_json(body: bytes, shape: type[_T]) -> _T:
    """``body`` as ``shape``.

    Raises:
        InvalidRequestError: malformed JSON or a wrong type; ``param`` is the path.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(str(error), param=_path_of(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error


def _path_of(message: str) -> str | None:
    """The path in msgspec's message: "… - at `$.a.b`", "missing required field `a`"."""
    _, _, place = message.partition(" - at `$")
    path = place.rstrip("`")
    _, is_missing, field = message.partition("missing required field `")
    if is_missing:
        path += "." + field.partition("`")[0]
    return path.lstrip(".") or None


def json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def error_response(error: TriptychError) -> Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return Response(
        msgspec.json.encode(error.body()),
        status_code=error.http_status,
        media_type="application/json",
        headers=headers,
    )


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, cancelled as soon as the client hangs up.

    Raises:
        ClientGoneError: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("the client closed the connection")
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _everyone() -> None:
    """The guard of an open door."""


async def _on_triptych_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TriptychError):
        raise error
    note(request, error=error.code or error.type)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    path = request.url.path
    mapped: TriptychError
    if status == MethodNotAllowedError.http_status:
        mapped = MethodNotAllowedError(f"{request.method} is not allowed on {path}")
    elif status == NotFoundError.http_status:
        mapped = NotFoundError(f"there is no {path} here; /docs lists what is")
    else:
        mapped = InvalidRequestError(str(getattr(error, "detail", error)))
    response = error_response(mapped)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def _too_large(size: int, limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has {size:,} bytes or more, limit is {limit:,}")


def _version() -> str:
    return version("triptych")
