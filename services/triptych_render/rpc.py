"""render's gRPC service."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc.aio

from triptych.convert import rendered_to_proto
from triptych.drain import Drain
from triptych.offload import offload_body
from triptych.rpc import RpcServer
from triptych.rpc_edge import RpcEdge, caller_request_id
from triptych.sessions import SessionKind, serve_session
from triptych.v1 import render_pb2, render_pb2_grpc
from triptych_render.renderer import Renderer
from triptych_render.session import RenderSession

_Context = grpc.aio.ServicerContext[Any, Any]
_T = TypeVar("_T")


class RenderServicer(render_pb2_grpc.RenderServiceServicer):
    """Calls the renderer; errors become statuses at the edge."""

    def __init__(self, renderer: Renderer, drain: Drain) -> None:
        self._renderer = renderer
        self._drain = drain

    def open_session(self, on_news: Callable[[], None]) -> RenderSession:
        return RenderSession(self._renderer, self._drain, on_news)

    async def RenderChat(
        self, request: render_pb2.RenderRequest, context: _Context
    ) -> render_pb2.RenderResponse:
        request_id = caller_request_id(context, request.request_id)

        def render(body: bytes) -> render_pb2.RenderResponse:
            return rendered_to_proto(self._renderer.render_chat(body, request_id=request_id))

        return await self._at_edge(context, request.body, render)

    async def RenderCompletion(
        self, request: render_pb2.RenderRequest, context: _Context
    ) -> render_pb2.RenderResponse:
        request_id = caller_request_id(context, request.request_id)

        def render(body: bytes) -> render_pb2.RenderResponse:
            return rendered_to_proto(self._renderer.render_completion(body, request_id=request_id))

        return await self._at_edge(context, request.body, render)

    async def Session(
        self, request_iterator: AsyncIterator[render_pb2.RenderCommands], context: _Context
    ) -> AsyncIterator[render_pb2.RenderStep]:
        steps = serve_session(self.open_session, request_iterator, context, self._drain)
        async with contextlib.aclosing(steps):
            async for step in steps:
                yield step

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: _Context
    ) -> render_pb2.TextResponse:
        answer = await self._at_edge(context, request.body, self._renderer.tokenize)
        return render_pb2.TextResponse(body=answer)

    async def Detokenize(
        self, request: render_pb2.TextRequest, context: _Context
    ) -> render_pb2.TextResponse:
        answer = await self._at_edge(context, request.body, self._renderer.detokenize)
        return render_pb2.TextResponse(body=answer)

    async def GetTokenizerInfo(
        self, request: render_pb2.TokenizerInfoRequest, context: _Context
    ) -> render_pb2.TextResponse:
        async with RpcEdge(context, self._drain):
            return render_pb2.TextResponse(body=self._renderer.tokenizer_info())

    async def _at_edge(self, context: _Context, body: bytes, work: Callable[[bytes], _T]) -> _T:
        """``work(body)``; what it raises ends the call with the mapped status."""
        async with RpcEdge(context, self._drain):
            return await offload_body(body, lambda: work(body))


def create_render_rpc(renderer: Renderer) -> RpcServer:
    rpc = RpcServer(["triptych.v1.RenderService"])
    servicer = RenderServicer(renderer, rpc.drain)
    render_pb2_grpc.add_RenderServiceServicer_to_server(servicer, rpc.server)
    rpc.add_sessions(
        SessionKind("triptych.v1.RenderService", render_pb2.RenderCommands, servicer.open_session)
    )
    return rpc
