"""``AsyncGenerateClient``: ``GenerateClient`` for asyncio. Methods and errors are the same."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from triptych.client.closing import AsyncClosing
from triptych.client.retries import DEFAULT_RETRIES, Retries
from triptych.client.rpc import (
    OPTIONS,
    bearer_metadata,
    score_of_answer,
    score_request,
    whole_answer,
)
from triptych.client.scores import Score
from triptych.client.streams import AsyncStream
from triptych.convert import delta_from_proto, info_from_proto, request_to_proto
from triptych.convert_structured import vocabulary_to_proto
from triptych.errors import ClientGoneError
from triptych.rpc_errors import from_rpc_error
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import Generated, GenerateDelta, GenerateRequest, ModelInfo, Vocabulary


class AsyncGenerateClient(AsyncClosing):
    """``GenerateClient`` for asyncio; what its methods do says ``GenerateClient``."""

    def __init__(
        self,
        target: str = "127.0.0.1:9002",
        *,
        api_key: str | None = None,
        timeout_s: float | None = 600.0,
        retries: Retries = DEFAULT_RETRIES,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """As ``GenerateClient``; to be made where the event loop runs."""
        self._name = f"generate at {target}"
        self._timeout_s = timeout_s
        self._retries = retries
        self._metadata = bearer_metadata(api_key)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)

    def stream(self, request: GenerateRequest) -> AsyncStream[GenerateDelta]:
        return AsyncStream(self._deltas(request))

    async def generate(self, request: GenerateRequest) -> Generated:
        return whole_answer(request, [delta async for delta in self.stream(request)])

    async def score(self, token_ids: Sequence[int], *, top: int = 0) -> Score:
        return score_of_answer(await self.generate(score_request(token_ids, top)))

    async def info(self) -> ModelInfo:
        return info_from_proto(await self._call(self._stub.GetInfo, generate_pb2.GetInfoRequest()))

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        message = generate_pb2.AbortRequest(request_ids=request_ids)
        return list((await self._call(self._stub.Abort, message)).aborted)

    async def put_vocabulary(self, vocabulary: Vocabulary) -> None:
        await self._call(self._stub.PutVocabulary, vocabulary_to_proto(vocabulary))

    async def aclose(self) -> None:
        await self._channel.close(None)

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        attempts, has_begun = self._retries.begin(), False
        message = request_to_proto(request)
        while True:
            call = self._stub.Generate(message, **self._options())
            try:
                async for delta in call:
                    has_begun = True
                    yield delta_from_proto(delta)
                return
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error, self._name)
                if has_begun:
                    raise failure from error
                wait_s = attempts.wait_s(failure)
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                raise ClientGoneError(f"{self._name}: the client was closed") from error
            finally:
                call.cancel()
            await asyncio.sleep(wait_s)

    async def _call(self, method: Callable[..., Any], message: Any) -> Any:
        attempts = self._retries.begin()
        while True:
            try:
                return await method(message, **self._options())
            except grpc.aio.AioRpcError as error:
                wait_s = attempts.wait_s(from_rpc_error(error, self._name))
            await asyncio.sleep(wait_s)

    def _options(self) -> dict[str, Any]:
        return {"timeout": self._timeout_s, "metadata": grpc.aio.Metadata(*self._metadata)}


def _is_cancelled() -> bool:
    """The task itself is, and not only the call that it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
