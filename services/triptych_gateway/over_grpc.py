"""Links to panels over gRPC."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import msgspec

from triptych.convert import (
    answer_to_proto,
    info_from_proto,
)
from triptych.convert_structured import vocabulary_from_proto, vocabulary_to_proto
from triptych.errors import InvalidRequestError
from triptych.hops import NO_HOPS, Hops
from triptych.mailbox import Taker
from triptych.reply import Endpoint, Rendered, ReplySpec
from triptych.rpc import RpcErrors, call_metadata, open_channel
from triptych.rpc_options import MAX_MESSAGE_BYTES
from triptych.v1 import (
    derender_pb2,
    derender_pb2_grpc,
    generate_pb2,
    generate_pb2_grpc,
    render_pb2,
    render_pb2_grpc,
)
from triptych.wire import Generated, GenerateDelta, GenerateRequest, ModelInfo, Vocabulary
from triptych_gateway import deadline
from triptych_gateway.derender_session import DerenderSession
from triptych_gateway.generate_session import GenerateSession
from triptych_gateway.links import ReplyFeed
from triptych_gateway.render_session import RenderSession
from triptych_gateway.session_call import session_door

#: Seconds for render, derender of a whole answer, and questions about a worker; less where the
#: request has less left.
CALL_TIMEOUT_S = 60.0
INFO_TIMEOUT_S = 2.0


class GrpcRender:
    """render at ``target`` (host:port)."""

    def __init__(self, target: str, *, hops: Hops = NO_HOPS) -> None:
        self._name = f"render at {target}"
        self._channel = open_channel(target, hops)
        self._stub = render_pb2_grpc.RenderServiceStub(self._channel)
        self._session = RenderSession(session_door(self._name, target, "RenderService", hops))

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        limit_s = deadline.within(CALL_TIMEOUT_S)
        return await self._session.render(endpoint, body, request_id, timeout_s=limit_s)

    async def tokenize(self, body: bytes) -> bytes:
        async with RpcErrors(self._name):
            request = render_pb2.TextRequest(body=body)
            return (
                await self._stub.Tokenize(request, timeout=deadline.within(CALL_TIMEOUT_S))
            ).body

    async def detokenize(self, body: bytes) -> bytes:
        async with RpcErrors(self._name):
            request = render_pb2.TextRequest(body=body)
            return (
                await self._stub.Detokenize(request, timeout=deadline.within(CALL_TIMEOUT_S))
            ).body

    async def tokenizer_info(self) -> bytes:
        async with RpcErrors(self._name):
            request = render_pb2.TokenizerInfoRequest()
            return (await self._stub.GetTokenizerInfo(request, timeout=INFO_TIMEOUT_S)).body

    async def close(self) -> None:
        self._session.close()
        await self._channel.close(None)


class GrpcGenerate:
    """generate at ``target`` (host:port). ``timeout_s`` bounds a whole answer."""

    def __init__(self, target: str, *, timeout_s: float, hops: Hops = NO_HOPS) -> None:
        self._name = f"generate at {target}"
        self._timeout_s = timeout_s
        self._channel = open_channel(target, hops)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)
        self._session = GenerateSession(session_door(self._name, target, "GenerateService", hops))

    def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        timeout_s = deadline.within(self._timeout_s)
        return self._session.deltas(request, timeout_s=timeout_s, taker=taker)

    async def info(self) -> ModelInfo:
        async with RpcErrors(self._name):
            request = generate_pb2.GetInfoRequest()
            return info_from_proto(await self._stub.GetInfo(request, timeout=INFO_TIMEOUT_S))

    async def put_vocabulary(self, vocabulary: Vocabulary) -> None:
        async with RpcErrors(self._name):
            message = vocabulary_to_proto(vocabulary)
            await self._stub.PutVocabulary(message, timeout=deadline.within(CALL_TIMEOUT_S))

    async def close(self) -> None:
        self._session.close()
        await self._channel.close(None)


class GrpcDerender:
    """derender at ``target`` (host:port). ``timeout_s`` bounds a whole streamed reply."""

    def __init__(self, target: str, *, timeout_s: float, hops: Hops = NO_HOPS) -> None:
        self._name = f"derender at {target}"
        self._timeout_s = timeout_s
        self._channel = open_channel(target, hops)
        self._stub = derender_pb2_grpc.DerenderServiceStub(self._channel)
        self._session = DerenderSession(session_door(self._name, target, "DerenderService", hops))

    def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AbstractAsyncContextManager[ReplyFeed]:
        start = derender_pb2.DerenderStart(
            reply_spec=msgspec.json.encode(spec),
            request_id=request_id,
            created=created,
            prompts=[derender_pb2.Prompt(token_ids=ids) for ids in prompts],
        )
        return self._session.open(start, timeout_s=deadline.within(self._timeout_s))

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        request = derender_pb2.DerenderWholeRequest(
            reply_spec=msgspec.json.encode(spec),
            request_id=request_id,
            created=created,
            answers=[answer_to_proto(answer) for answer in answers],
        )
        if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
            raise InvalidRequestError(
                f"the whole answer has {size:,} bytes for derender, limit is "
                f"{MAX_MESSAGE_BYTES:,}: ask for a stream, or for fewer prompts or candidates"
            )
        async with RpcErrors(self._name):
            answer = await self._stub.DerenderWhole(
                request, timeout=deadline.within(CALL_TIMEOUT_S), metadata=call_metadata(request_id)
            )
            return answer.body

    async def vocabulary(self) -> Vocabulary:
        async with RpcErrors(self._name):
            request = derender_pb2.VocabularyRequest()
            return vocabulary_from_proto(
                await self._stub.GetVocabulary(request, timeout=deadline.within(CALL_TIMEOUT_S))
            )

    async def close(self) -> None:
        self._session.close()
        await self._channel.close(None)
