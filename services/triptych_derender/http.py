"""derender's JSON endpoints."""

import asyncio

import msgspec
from fastapi import FastAPI, Request, Response

from triptych.http import create_app, json_response, read_body
from triptych.offload import offload_body
from triptych_derender.derenderer import Derenderer


def create_derender_app(derenderer: Derenderer, *, max_body_bytes: int) -> FastAPI:
    app = create_app(
        "derender",
        model=(derenderer.model, derenderer.max_model_len),
    )

    @app.post("/v1/chat/completions/derender")
    async def derender_chat(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await offload_body(body, lambda: derenderer.derender_chat(body)))

    @app.post("/v1/completions/derender")
    async def derender_completion(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await offload_body(body, lambda: derenderer.derender_completion(body)))

    @app.get("/vocabulary")
    async def vocabulary() -> Response:
        return json_response(
            await asyncio.to_thread(lambda: msgspec.json.encode(derenderer.vocabulary()))
        )

    return app
