"""The gateway's OpenAI endpoints."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from prometheus_client.registry import Collector

from triptych import sse
from triptych.errors import TriptychError
from triptych.http import create_app, json_response, read_body, request_id, unless_gone
from triptych.metrics import GaugeSource
from triptych.reply import Endpoint
from triptych_gateway import deadline, flows
from triptych_gateway.flows import Panels
from triptych_gateway.gate import Gate, KeySource, Room, Ticket, ticket_of
from triptych_gateway.lens_page import LENS_PREFIX, mount_lens
from triptych_gateway.metered import metered
from triptych_gateway.metrics import GatewayMetrics

_ROOM = Room()


def create_gateway_app(
    panels: Panels,
    *,
    max_body_bytes: int,
    request_timeout_s: float = 600.0,
    keys: KeySource | None = None,
    room: Room = _ROOM,
    is_ready: Callable[[], Awaitable[bool]] | None = None,
    collectors: tuple[Collector, ...] = (),
) -> FastAPI:
    """The OpenAI endpoints over ``panels``.

    Args:
        panels: where requests go.
        max_body_bytes: larger requests are a 413.
        request_timeout_s: from a request's head to its answer's end; then 504, or an error event.
        keys: who may ask; None: everyone.
        room: how much is in work at a time.
        is_ready: whether requests can be served; None: whether generate and render answer.
        collectors: metrics of the links.
    """
    metrics = GatewayMetrics()
    gate = Gate(keys=keys, room=room, metrics=metrics)

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
        model=served_model,
        is_ready=is_ready or panels_answer,
        gate=gate,
        needs_key=keys is not None,
        gauges=(
            GaugeSource("requests_held", "requests in work", lambda: gate.requests),
            GaugeSource("prompt_tokens_held", "their prompts' tokens", lambda: gate.prompt_tokens),
        ),
        collectors=(*metrics.collectors, *collectors),
        open_prefixes=(LENS_PREFIX,),
    )
    mount_lens(app)

    async def begun(request: Request) -> bytes:
        """The body of a request whose time runs from now on."""
        deadline.begin(request_timeout_s)
        return await deadline.kept(read_body(request, max_body_bytes))

    async def answer(request: Request, endpoint: Endpoint) -> Response:
        body = await begun(request)
        ticket = ticket_of(request)
        own = metered(panels, ticket, metrics)
        work = _begin(own, ticket, endpoint, body, request_id(request))
        return await unless_gone(request, deadline.kept(work))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await answer(request, "chat")

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer(request, "completions")

    app.serve_directly("/v1/chat/completions", "/v1/completions")

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        work = panels.render.tokenize(await begun(request))
        return json_response(await deadline.kept(work))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        work = panels.render.detokenize(await begun(request))
        return json_response(await deadline.kept(work))

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        return json_response(await panels.render.tokenizer_info())

    return app


async def _begin(
    panels: Panels, ticket: Ticket, endpoint: Endpoint, body: bytes, request_id: str
) -> Response:
    """The whole answer, or a stream that has its first frame."""
    flow = await flows.start(panels, endpoint, body, request_id)
    ticket.hold_prompts(flow.prompts)
    if flow.is_stream:
        outlet = sse.Outlet()
        return await sse.primed(flows.stream(flow, outlet), outlet, until=deadline.end())
    return json_response(await flows.whole(flow))
