"""generate's JSON endpoints."""

import contextlib
import time
from collections.abc import AsyncGenerator

import msgspec
from fastapi import FastAPI, Request, Response

from triptych import sse
from triptych.http import (
    create_app,
    decode_json,
    json_response,
    note,
    read_body,
    request_id,
    unless_gone,
)
from triptych.json_bodies import encode_generate_chunk, encode_generate_response
from triptych.request_ids import is_sane
from triptych.unknown_fields import log_unknown_fields
from triptych.wire import (
    Generated,
    GenerateDelta,
    GenerateRequest,
    SamplingParams,
    StreamOptions,
    Usage,
    Vocabulary,
    count_usage,
    join_answer,
)
from triptych_generate.readings import counts, gauges
from triptych_generate.service import GenerateService

_ABORT = "/inference/v1/abort_requests"


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /inference/v1/abort_requests``."""

    request_ids: list[str]


def create_generate_app(service: GenerateService, *, max_body_bytes: int) -> FastAPI:
    info = service.info()

    async def is_ready() -> bool:
        return service.is_alive

    app = create_app(
        "generate",
        model=(info.model, info.max_model_len),
        is_alive=lambda: service.is_alive,
        is_ready=is_ready,
        gauges=gauges(service),
        collectors=(*service.metrics.collectors, counts(service)),
        control_paths=frozenset({_ABORT}),
    )

    @app.post("/inference/v1/generate")
    async def generate(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        asked = decode_json(body, GenerateRequest)
        log_unknown_fields(body, {"": GenerateRequest, "sampling_params": SamplingParams})
        if asked.request_id is None:
            asked = msgspec.structs.replace(asked, request_id=request_id(request))
        elif asked.request_id != request_id(request) and is_sane(asked.request_id):
            note(request, request=asked.request_id)
        note(request, prompt_tokens=len(asked.token_ids))
        deltas = service.generate(asked)
        if asked.stream:
            return await sse.primed(_events(asked, deltas, request))
        answer = await unless_gone(request, collect(asked, deltas, info.model))
        note(request, output_tokens=answer.usage().completion_tokens)
        return json_response(encode_generate_response(answer))

    @app.post(_ABORT)
    async def abort(request: Request) -> dict[str, list[str]]:
        ids = decode_json(await read_body(request, max_body_bytes), AbortBody).request_ids
        return {"aborted": [each for each in ids if service.abort(each)]}

    @app.put("/inference/v1/vocabularies")
    async def put_vocabulary(request: Request) -> dict[str, bool]:
        vocabulary = decode_json(await read_body(request, max_body_bytes), Vocabulary)
        return {"is_new": await service.put_vocabulary(vocabulary)}

    return app


async def collect(
    request: GenerateRequest, deltas: AsyncGenerator[GenerateDelta, None], model: str
) -> Generated:
    """The whole answer of one request."""
    async with contextlib.aclosing(deltas):
        given = [delta async for delta in deltas]
    return join_answer(request, given, model=model, created=int(time.time()))


async def _events(
    request: GenerateRequest, deltas: AsyncGenerator[GenerateDelta, None], http: Request
) -> AsyncGenerator[bytes, None]:
    options = request.stream_options or StreamOptions()
    prompt_token_ids = _prompt_token_ids(request)
    num_prompt, num_output, num_cached = request.prompt_len, 0, 0
    start = time.perf_counter()
    async with contextlib.aclosing(deltas):
        async for delta in deltas:
            if num_output == 0:
                note(http, first_token_ms=round((time.perf_counter() - start) * 1000, 1))
            num_output += sum(len(choice.token_ids) for choice in delta.choices)
            num_cached += delta.cached_tokens
            note(http, output_tokens=num_output)
            running: Usage | None = None
            if options.include_usage and options.continuous_usage_stats:
                running = count_usage(num_prompt, num_output, num_cached)
            yield sse.frame([encode_generate_chunk(delta, running, prompt_token_ids)])
            prompt_token_ids = None
    if options.include_usage:
        last = GenerateDelta(request_id=request.request_id or "", choices=[])
        usage = count_usage(num_prompt, num_output, num_cached)
        yield sse.frame([encode_generate_chunk(last, usage, None)])
    yield sse.DONE


def _prompt_token_ids(request: GenerateRequest) -> list[int] | None:
    return request.token_ids[: request.prompt_len] if request.return_token_ids else None
