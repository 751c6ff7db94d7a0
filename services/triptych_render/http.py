"""render's JSON endpoints."""

from fastapi import FastAPI, Request, Response

from triptych.http import create_app, json_response, note, read_body, request_id
from triptych.offload import offload_body
from triptych.reply import Rendered
from triptych_render.renderer import Renderer, generate_request_body


def create_render_app(renderer: Renderer, *, max_body_bytes: int) -> FastAPI:
    app = create_app(
        "render",
        model=(renderer.model, renderer.max_model_len),
    )

    @app.post("/v1/chat/completions/render")
    async def render_chat(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        rendered = await offload_body(
            body, lambda: renderer.render_chat(body, request_id=request_id(request))
        )
        _note(request, rendered)
        return json_response(generate_request_body(rendered.requests[0]))

    @app.post("/v1/completions/render")
    async def render_completion(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        rendered = await offload_body(
            body, lambda: renderer.render_completion(body, request_id=request_id(request))
        )
        _note(request, rendered)
        return json_response(b"[" + b",".join(map(generate_request_body, rendered.requests)) + b"]")

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await offload_body(body, lambda: renderer.tokenize(body)))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        return json_response(await offload_body(body, lambda: renderer.detokenize(body)))

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        return json_response(renderer.tokenizer_info())

    return app


def _note(request: Request, rendered: Rendered) -> None:
    note(request, prompt_tokens=sum(len(each.token_ids) for each in rendered.requests))
