"""derender's gRPC service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from triptych.convert import answer_from_proto, delta_from_proto, spec_from_bytes
from triptych.convert_structured import vocabulary_to_proto
from triptych.drain import Drain
from triptych.errors import InvalidRequestError
from triptych.rpc import RpcServer
from triptych.rpc_edge import RpcEdge, caller_request_id
from triptych.rpc_options import MAX_MESSAGE_BYTES
from triptych.sessions import SessionKind, serve_session
from triptych.v1 import derender_pb2, derender_pb2_grpc, generate_pb2
from triptych_derender.derenderer import Derenderer, ReplyStream
from triptych_derender.session import DerenderSession

_Context = grpc.aio.ServicerContext[Any, Any]


class DerenderServicer(derender_pb2_grpc.DerenderServiceServicer):
    """Keeps one reply's state per stream, or those of a session's replies."""

    def __init__(self, derenderer: Derenderer, drain: Drain) -> None:
        self._derenderer = derenderer
        self._drain = drain

    def open_session(self, on_news: Callable[[], None]) -> DerenderSession:
        return DerenderSession(self._derenderer, self._drain, on_news)

    async def Derender(
        self, request_iterator: AsyncIterator[derender_pb2.DerenderCommand], context: _Context
    ) -> AsyncIterator[derender_pb2.DerenderChunks]:
        async with RpcEdge(context, self._drain):
            reply: ReplyStream | None = None
            async for command in request_iterator:
                kind = command.WhichOneof("command")
                if reply is None and kind == "start":
                    reply = self._open(command.start)
                elif reply is not None and kind == "delta":
                    fed = reply.feed(
                        command.delta.prompt_index, delta_from_proto(command.delta.delta)
                    )
                    yield derender_pb2.DerenderChunks(
                        chunks=fed.chunks, done_prompts=fed.done_prompts, is_done=fed.is_done
                    )
                else:
                    raise InvalidRequestError("a stream is one `start`, then deltas")

    async def Session(
        self,
        request_iterator: AsyncIterator[derender_pb2.DerenderCommands],
        context: _Context,
    ) -> AsyncIterator[derender_pb2.DerenderStep]:
        steps = serve_session(self.open_session, request_iterator, context, self._drain)
        async with contextlib.aclosing(steps):
            async for step in steps:
                yield step

    async def DerenderWhole(
        self, request: derender_pb2.DerenderWholeRequest, context: _Context
    ) -> derender_pb2.DerenderWholeResponse:
        async with RpcEdge(context, self._drain):
            body = await asyncio.to_thread(
                self._whole, request, caller_request_id(context, request.request_id)
            )
            answer = derender_pb2.DerenderWholeResponse(body=body)
            if (size := answer.ByteSize()) > MAX_MESSAGE_BYTES:
                raise InvalidRequestError(
                    f"the whole reply has {size:,} bytes, limit is {MAX_MESSAGE_BYTES:,}: ask for "
                    f"a stream, or for fewer prompts or candidates"
                )
            return answer

    async def GetVocabulary(
        self, request: derender_pb2.VocabularyRequest, context: _Context
    ) -> generate_pb2.Vocabulary:
        async with RpcEdge(context, self._drain):
            return vocabulary_to_proto(await asyncio.to_thread(self._derenderer.vocabulary))

    def _open(self, start: derender_pb2.DerenderStart) -> ReplyStream:
        return self._derenderer.open(
            spec_from_bytes(start.reply_spec),
            request_id=start.request_id,
            created=start.created,
            prompts=[list(prompt.token_ids) for prompt in start.prompts],
        )

    def _whole(self, request: derender_pb2.DerenderWholeRequest, request_id: str) -> bytes:
        spec = spec_from_bytes(request.reply_spec)
        answers = [
            answer_from_proto(
                answer, request_id=request_id, model=spec.model, created=request.created
            )
            for answer in request.answers
        ]
        return self._derenderer.whole(spec, answers, request_id=request_id, created=request.created)


def create_derender_rpc(derenderer: Derenderer) -> RpcServer:
    rpc = RpcServer(["triptych.v1.DerenderService"])
    servicer = DerenderServicer(derenderer, rpc.drain)
    derender_pb2_grpc.add_DerenderServiceServicer_to_server(servicer, rpc.server)
    rpc.add_sessions(
        SessionKind(
            "triptych.v1.DerenderService", derender_pb2.DerenderCommands, servicer.open_session
        )
    )
    return rpc
