"""generate's gRPC service."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import msgspec

from triptych.convert import delta_to_proto, info_to_proto, request_from_proto
from triptych.convert_structured import vocabulary_from_proto
from triptych.drain import Drain
from triptych.rpc import RpcServer
from triptych.rpc_edge import RpcEdge, caller_request_id
from triptych.sessions import SessionKind, serve_session
from triptych.v1 import generate_pb2, generate_pb2_grpc, vllm_engine_pb2_grpc
from triptych_generate import smg
from triptych_generate.service import GenerateService
from triptych_generate.session import GenerateSession

_Context = grpc.aio.ServicerContext[Any, Any]


class GenerateServicer(generate_pb2_grpc.GenerateServiceServicer):
    """One stream per request, or all requests of a caller in one session.

    A cancelled call closes the deltas, which aborts the request. Abort is answered while the server
    drains.
    """

    def __init__(self, service: GenerateService, drain: Drain) -> None:
        self._service = service
        self._drain = drain

    def open_session(self, on_news: Callable[[], None]) -> GenerateSession:
        return GenerateSession(self._service, self._drain, on_news)

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateDelta]:
        async with RpcEdge(context, self._drain):
            request_id = caller_request_id(context, request.request_id)
            asked = msgspec.structs.replace(request_from_proto(request), request_id=request_id)
            async with contextlib.aclosing(self._service.generate(asked)) as deltas:
                async for delta in deltas:
                    yield delta_to_proto(delta)

    async def Session(
        self,
        request_iterator: AsyncIterator[generate_pb2.GenerateCommands],
        context: _Context,
    ) -> AsyncIterator[generate_pb2.GenerateStep]:
        steps = serve_session(self.open_session, request_iterator, context, self._drain)
        async with contextlib.aclosing(steps):
            async for step in steps:
                yield step

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: _Context
    ) -> generate_pb2.AbortResponse:
        aborted = [each for each in request.request_ids if self._service.abort(each)]
        return generate_pb2.AbortResponse(aborted=aborted)

    async def GetInfo(
        self, request: generate_pb2.GetInfoRequest, context: _Context
    ) -> generate_pb2.GetInfoResponse:
        async with RpcEdge(context, self._drain):
            return info_to_proto(self._service.info())

    async def PutVocabulary(
        self, request: generate_pb2.Vocabulary, context: _Context
    ) -> generate_pb2.PutVocabularyResponse:
        async with RpcEdge(context, self._drain):
            is_new = await self._service.put_vocabulary(vocabulary_from_proto(request))
            return generate_pb2.PutVocabularyResponse(is_new=is_new)


def create_generate_rpc(service: GenerateService) -> RpcServer:
    rpc = RpcServer(["triptych.v1.GenerateService", smg.SERVICE_NAME])
    servicer = GenerateServicer(service, rpc.drain)
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(servicer, rpc.server)
    rpc.add_sessions(
        SessionKind(
            "triptych.v1.GenerateService", generate_pb2.GenerateCommands, servicer.open_session
        )
    )
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(
        smg.VllmEngineServicer(service, rpc.drain), rpc.server
    )
    return rpc
