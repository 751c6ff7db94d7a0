"""derender's JSON endpoints."""

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from triptych.http import create_app, json_response, read_body
from triptych_derender.derenderer import Derenderer

#: Bodies up to this size (a stream's chunk) are derendered on the event loop: about 0.1 ms.
INLINE_BYTES = 16384


def create_derender_app(derenderer: Derenderer, *, max_body_bytes: int) -> FastAPI:
    app = create_app(
        "derender",
        description="Token ids and integer logprobs in, OpenAI replies out.",
        model=(derenderer.model, derenderer.max_model_len),
    )

    @app.post("/v1/chat/completions/derender", summary="A chat reply, whole or the next chunk")
    async def derender_chat(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await _offload(body, derenderer.derender_chat))

    @app.post("/v1/completions/derender", summary="A completions reply, whole or the next chunk")
    async def derender_completion(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await _offload(body, derenderer.derender_completion))

    return app


async def _offload(body: bytes, work: Callable[[bytes], bytes]) -> bytes:
    return work(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(work, body)
