"""HTTP plumbing that every service shares: the app with its common endpoints, errors and bodies."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from triptych.api_docs import mount_api_docs
from triptych.connected import WhileConnected
from triptych.drain import Drain
from triptych.edge import (
    Gate,
    RequestEdge,
    error_response,
    note,
    open_gate,
    refusal,
    request_id,
)
from triptych.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    ModelNotFoundError,
    NotFoundError,
    TriptychError,
)
from triptych.metrics import CONTENT_TYPE, GaugeSource, Metrics
from triptych.version import VERSION

__all__ = [
    "create_app",
    "decode_json",
    "error_response",
    "json_response",
    "note",
    "read_body",
    "request_id",
    "unless_gone",
]

_T = TypeVar("_T")

#: Name and context length (tokens) of the served model.
ModelFacts = tuple[str, int | None]


class _Route(APIRoute):
    """A route whose GET answers HEAD too; the server leaves its body out."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        if self.methods and "GET" in self.methods:
            self.methods.add("HEAD")


class App(FastAPI):
    """A service's app. What a server calls is the edge around it."""

    edge: RequestEdge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.edge(scope, receive, send)

    async def behind_edge(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)

    def serve_directly(self, *paths: str) -> None:
        """POSTs to ``paths`` pass FastAPI by; their endpoints must take the request alone."""
        routes = {each.path: each for each in self.routes if isinstance(each, APIRoute)}
        self.edge.direct.update({path: routes[path] for path in paths})


def create_app(
    service: str,
    *,
    model: ModelFacts | Callable[[], Awaitable[ModelFacts]],
    is_alive: Callable[[], bool] = lambda: True,
    is_ready: Callable[[], Awaitable[bool]] | None = None,
    gate: Gate = open_gate,
    needs_key: bool = False,
    gauges: tuple[GaugeSource, ...] = (),
    collectors: tuple[Collector, ...] = (),
    control_paths: frozenset[str] = frozenset(),
    open_prefixes: tuple[str, ...] = (),
) -> "App":
    """An app with health, readiness, metrics, version, models, request ids and error mapping.

    Args:
        service: its name, in titles, logs and metrics, and that of its OpenAPI document.
        model: name and context length of the served model, or where to ask for them.
        is_alive: False ends ``/health`` and ``/ready`` in 503.
        is_ready: whether requests can be served now.
        gate: asked about each request but those of ``edge.OPEN_PATHS`` and ``open_prefixes``.
        needs_key: whether the gate asks for a bearer token, for the OpenAPI document.
        gauges: figures of the service for ``/metrics``, read when they are asked for.
        collectors: counters and histograms of the service, under no registry yet.
        control_paths: what is answered while the service drains, beside all that only reads.
        open_prefixes: paths that begin so are open to everyone, beside the common ones.
    """
    app = App(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = _Route
    metrics = Metrics(service, gauges, collectors)
    app.state.metrics = metrics
    app.state.drain = drain = Drain()
    app.state.gate = gate
    app.state.needs_key = needs_key
    app.edge = RequestEdge(
        app,
        app.behind_edge,
        service=service,
        metrics=metrics,
        drain=drain,
        control_paths=control_paths,
        open_prefixes=open_prefixes,
    )
    app.add_exception_handler(TriptychError, _on_triptych_error)
    app.add_exception_handler(Exception, _leave_to_edge)
    app.add_exception_handler(HTTPException, _on_http_exception)
    started = int(time.time())

    mount_api_docs(app, service)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if is_alive() else 503)

    @app.get("/ready")
    async def ready() -> Response:
        can_serve = not drain.is_draining and is_alive()
        can_serve = can_serve and (is_ready is None or await is_ready())
        return Response(status_code=200 if can_serve else 503)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/version")
    async def version_page() -> dict[str, str]:
        return {"version": VERSION}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        served = await model() if callable(model) else model
        return {"object": "list", "data": [_model_entry(served, started)]}

    @app.get("/v1/models/{name:path}")
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


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, cancelled as soon as the client hangs up.

    Raises:
        ClientGoneError: the client left first.
    """
    try:
        async with WhileConnected(request.receive):
            return await work
    finally:
        work.close()


async def _on_triptych_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TriptychError):
        raise error
    return refusal(request.scope, error)


async def _leave_to_edge(request: Request, error: Exception) -> Response:
    raise error


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
