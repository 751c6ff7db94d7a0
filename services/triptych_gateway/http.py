"""The gateway's OpenAI endpoints."""

import hmac
from collections.abc import Awaitable, Callable

from fastapi import Depends, FastAPI, Request, Response
from prometheus_client.registry import Collector
from pydantic import SecretStr

from triptych import sse
from triptych.errors import TriptychError, UnauthenticatedError
from triptych.http import create_app, json_response, read_body, request_id, unless_gone
from triptych.reply import Endpoint
from triptych_gateway import flows
from triptych_gateway.flows import Panels


def create_gateway_app(
    panels: Panels,
    *,
    max_body_bytes: int,
    api_key: SecretStr | None = None,
    is_ready: Callable[[], Awaitable[bool]] | None = None,
    collectors: tuple[Collector, ...] = (),
) -> FastAPI:
    """The OpenAI endpoints over ``panels``.

    Args:
        panels: where requests go.
        max_body_bytes: larger requests are a 413.
        api_key: what clients must send; None: nothing.
        is_ready: whether requests can be served; None: whether generate and render answer.
        collectors: metrics of the links.
    """

    async def panels_answer() -> bool:
        try:
            await panels.generate.info()
            await panels.render.tokenizer_info()
        except TriptychError:
            return False
        return True

    async def served_model() -> tuple[str, int | None]:
        info = await panels.generate.info()
        return info.model, info.max_model_len

    app = create_app(
        "gateway",
        description="OpenAI's chat and completions over render, generate and derender.",
        model=served_model,
        is_ready=is_ready or panels_answer,
        guard=_guard(api_key),
        collectors=collectors,
    )
    guarded = [Depends(_guard(api_key))]

    async def answer(request: Request, endpoint: Endpoint) -> Response:
        body = await read_body(request, max_body_bytes)
        flow = await unless_gone(request, flows.start(panels, endpoint, body, request_id(request)))
        if flow.is_stream:
            return sse.EventStream(await unless_gone(request, sse.primed(flows.stream(flow))))
        return json_response(await unless_gone(request, flows.whole(flow)))

    @app.post("/v1/chat/completions", summary="Chat", dependencies=guarded)
    async def chat(request: Request) -> Response:
        return await answer(request, "chat")

    @app.post("/v1/completions", summary="Completions", dependencies=guarded)
    async def completions(request: Request) -> Response:
        return await answer(request, "completions")

    @app.post("/tokenize", summary="Text or messages to token ids", dependencies=guarded)
    async def tokenize(request: Request) -> Response:
        return json_response(await panels.render.tokenize(await read_body(request, max_body_bytes)))

    @app.post("/detokenize", summary="Token ids to text", dependencies=guarded)
    async def detokenize(request: Request) -> Response:
        return json_response(
            await panels.render.detokenize(await read_body(request, max_body_bytes))
        )

    @app.get("/tokenizer_info", summary="What the tokenizer is", dependencies=guarded)
    async def tokenizer_info() -> Response:
        return json_response(await panels.render.tokenizer_info())

    return app


def _guard(api_key: SecretStr | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets a request in only with the right bearer token."""
    wanted = None if api_key is None else api_key.get_secret_value().encode()

    async def check(request: Request) -> None:
        if wanted is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), wanted)
        if scheme.lower() != "bearer" or not is_right:
            raise UnauthenticatedError("a valid API key is needed as a bearer token")

    return check
