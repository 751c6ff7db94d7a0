"""render's gRPC service."""

from typing import Any

import grpc.aio

from triptych.convert import rendered_to_proto
from triptych.rpc import RpcEdge, RpcServer, caller_request_id
from triptych.v1 import render_pb2, render_pb2_grpc
from triptych_render.http import offload
from triptych_render.renderer import Renderer

_Context = grpc.aio.ServicerContext[Any, Any]


class RenderServicer(render_pb2_grpc.RenderServiceServicer):
    """Calls the renderer; errors become statuses at the edge."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def RenderChat(
        self, request: render_pb2.RenderRequest, context: _Context
    ) -> render_pb2.RenderResponse:
        async with RpcEdge(context):
            body, request_id = request.body, caller_request_id(context, request.request_id)
            rendered = await offload(
                body, lambda: self._renderer.render_chat(body, request_id=request_id)
            )
            return rendered_to_proto(rendered)

    async def RenderCompletion(
        self, request: render_pb2.RenderRequest, context: _Context
    ) -> render_pb2.RenderResponse:
        async with RpcEdge(context):
            body, request_id = request.body, caller_request_id(context, request.request_id)
            rendered = await offload(
                body, lambda: self._renderer.render_completion(body, request_id=request_id)
            )
            return rendered_to_proto(rendered)

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: _Context
    ) -> render_pb2.TextResponse:
        async with RpcEdge(context):
            body = request.body
            answer = await offload(body, lambda: self._renderer.tokenize(body))
            return render_pb2.TextResponse(body=answer)

    async def Detokenize(
        self, request: render_pb2.TextRequest, context: _Context
    ) -> render_pb2.TextResponse:
        async with RpcEdge(context):
            body = request.body
            answer = await offload(body, lambda: self._renderer.detokenize(body))
            return render_pb2.TextResponse(body=answer)

    async def GetTokenizerInfo(
        self, request: render_pb2.TokenizerInfoRequest, context: _Context
    ) -> render_pb2.TextResponse:
        return render_pb2.TextResponse(body=self._renderer.tokenizer_info())


def create_render_rpc(renderer: Renderer) -> RpcServer:
    rpc = RpcServer(["triptych.v1.RenderService"])
    render_pb2_grpc.add_RenderServiceServicer_to_server(RenderServicer(renderer), rpc.server)
    return rpc
