"""All panels on real sockets, with a generate server that sends ids which a test wrote."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import openai
from fastapi import FastAPI
from tokenizers import Tokenizer

from support.net import listening
from triptych.convert import delta_to_proto, info_to_proto, request_from_proto
from triptych.drain import Drain
from triptych.errors import TriptychError
from triptych.http import create_app
from triptych.logprobs import pack_logprobs
from triptych.mailbox import Mailbox
from triptych.rpc import RpcServer
from triptych.sessions import serve_session
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta, GenerateRequest, ModelInfo
from triptych_derender.derenderer import Derenderer
from triptych_derender.http import create_derender_app
from triptych_derender.rpc import create_derender_rpc
from triptych_gateway.flows import Panels
from triptych_gateway.gate import Room
from triptych_gateway.http import create_gateway_app
from triptych_gateway.over_grpc import GrpcDerender, GrpcGenerate, GrpcRender
from triptych_generate.session import GenerateSession
from triptych_render.http import create_render_app
from triptych_render.renderer import Renderer
from triptych_render.rpc import create_render_rpc

#: Between two deltas; without a pause a reader would get several as one.
_STEP_S = 0.002

_Context = grpc.aio.ServicerContext[Any, Any]


class ScriptedGenerate(generate_pb2_grpc.GenerateServiceServicer):
    """A generate server that sends the same ids, one by one, for every sequence of a request.

    Without a ``finish_reason`` it begins again for ever. ``step_s``: seconds between two ids.
    ``requests``: what came, and ``begun`` is set. ``num_sent``: ids per request so far. ``ended``:
    set when a request has; ``aborted``: when its caller left before that.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        finish_reason: FinishReason | None = "stop",
        *,
        step_s: float = _STEP_S,
    ) -> None:
        self._token_ids = token_ids
        self._step_s = step_s
        self._finish_reason = finish_reason
        self.requests: list[GenerateRequest] = []
        self.num_sent = 0
        self.begun = asyncio.Event()
        self.aborted = asyncio.Event()
        self.ended = asyncio.Event()

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateDelta]:
        async with self.running(request_from_proto(request)) as mailbox:
            while (delta := await mailbox.get()) is not None:
                yield delta_to_proto(delta)

    async def Session(
        self, request_iterator: AsyncIterator[generate_pb2.GenerateCommands], context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateStep]:
        drain = Drain()
        opening = partial(GenerateSession, self, drain)
        async for step in serve_session(opening, request_iterator, context, drain):
            yield step

    @asynccontextmanager
    async def running(
        self, request: GenerateRequest, on_news: Callable[[], None] | None = None
    ) -> AsyncIterator[Mailbox]:
        self.requests.append(request)
        self.begun.set()
        self.num_sent = 0
        choices = range(request.sampling_params.n)
        mailbox = Mailbox(request_id=request.request_id or "", choices=choices, on_news=on_news)
        sending = asyncio.create_task(self._send(request, mailbox))
        try:
            yield mailbox
        finally:
            sending.cancel()
            self.ended.set()
            if not mailbox.has_ended:
                self.aborted.set()

    async def _send(self, request: GenerateRequest, mailbox: Mailbox) -> None:
        for position in self._positions():
            try:
                mailbox.put(self._delta(request, position))
            except TriptychError as error:
                mailbox.fail(error)
                return
            self.num_sent += 1
            await asyncio.sleep(self._step_s)

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: _Context
    ) -> generate_pb2.AbortResponse:
        return generate_pb2.AbortResponse()

    async def PutVocabulary(
        self, request: generate_pb2.Vocabulary, context: Any
    ) -> generate_pb2.PutVocabularyResponse:
        return generate_pb2.PutVocabularyResponse(is_new=False)

    async def GetInfo(
        self, request: generate_pb2.GetInfoRequest, context: _Context
    ) -> generate_pb2.GetInfoResponse:
        info = ModelInfo(
            model="scripted",
            max_model_len=8192,
            vocab_size=49152,
            dtype="none",
            device="none",
            max_logprobs=20,
            can_resume=True,
        )
        return info_to_proto(info)

    def _delta(self, asked: GenerateRequest, position: int) -> GenerateDelta:
        token_id = self._token_ids[position]
        scores = [(token_id, -0.125 * (position + 1), 1), (token_id // 2, -20.0, 2)]
        params = asked.sampling_params
        choices = [
            ChoiceDelta(
                index=index,
                token_ids=[token_id],
                logprobs=None if params.logprobs is None else pack_logprobs([scores]),
                finish_reason=self._finish_reason if self._is_last(position) else None,
            )
            for index in range(params.n)
        ]
        return GenerateDelta(request_id=asked.request_id or "", choices=choices)

    def _positions(self) -> Iterable[int]:
        positions = range(len(self._token_ids))
        return positions if self._finish_reason else itertools.cycle(positions)

    def _is_last(self, position: int) -> bool:
        return position == len(self._token_ids) - 1


@dataclass(frozen=True, slots=True)
class Scripted:
    """A running stack: the client of its gateway, derender's JSON address, the generate server."""

    client: openai.AsyncOpenAI
    gateway: str
    derender: str
    generate: ScriptedGenerate


@dataclass(frozen=True, slots=True)
class TextPanels:
    """render and derender of one model; they take seconds to load and keep nothing."""

    model_dir: Path
    renderer: Renderer
    derenderer: Derenderer


def text_panels(model_dir: Path, response_template: str) -> TextPanels:
    options: dict[str, Any] = {"model": "scripted", "response_template": response_template}
    return TextPanels(
        model_dir,
        Renderer.from_directory(model_dir, **options),
        Derenderer.from_directory(model_dir, **options),
    )


@asynccontextmanager
async def scripted_stack(
    texts: TextPanels, generate: ScriptedGenerate, *, room: Room | None = None
) -> AsyncIterator[Scripted]:
    """Gateway (with ``room``), render, derender and ``generate``, each on sockets of its own."""
    renderer, derenderer = texts.renderer, texts.derenderer
    rpc = RpcServer(["triptych.v1.GenerateService"])
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(generate, rpc.server)
    render_app = create_render_app(renderer, max_body_bytes=2**20)
    derender_app = create_derender_app(derenderer, max_body_bytes=2**20)
    async with (
        listening(_control_app(), rpc) as generate_service,
        listening(render_app, create_render_rpc(renderer)) as render_service,
        listening(derender_app, create_derender_rpc(derenderer)) as derender_service,
    ):
        render_link = GrpcRender(_target(render_service.addresses))
        generate_link = GrpcGenerate(_target(generate_service.addresses), timeout_s=30)
        derender_link = GrpcDerender(_target(derender_service.addresses), timeout_s=30)
        panels = Panels(render_link, generate_link, derender_link)
        app = create_gateway_app(panels, max_body_bytes=2**20, room=room or Room())
        async with listening(app) as gateway_service:
            address = gateway_service.addresses[0]
            async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
                yield Scripted(client, address, derender_service.addresses[0], generate)
        for link in (render_link, generate_link, derender_link):
            await link.close()


def _control_app() -> FastAPI:
    """No endpoints: what a listener needs beside the gRPC server."""
    return create_app("scripted", model=("scripted", None))


def encoded(model_dir: Path, text: str) -> list[int]:
    """The ids that a model of this tokenizer would write ``text`` with."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _target(addresses: Sequence[str]) -> str:
    (target,) = [each.removeprefix("grpc://") for each in addresses if each.startswith("grpc://")]
    return target
