"""``GenerateClient``: generate over gRPC, blocking. Token ids in, token ids and logprobs out."""

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import grpc

from triptych.client.closing import Closing
from triptych.client.retries import DEFAULT_RETRIES, Retries
from triptych.client.scores import Score, score_of_columns
from triptych.client.streams import Stream
from triptych.convert import delta_from_proto, info_from_proto, request_to_proto
from triptych.convert_structured import vocabulary_to_proto
from triptych.errors import InternalError
from triptych.rpc_errors import from_rpc_error
from triptych.rpc_options import KEEP_ALIVE, RECONNECT, SIZES
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import (
    Generated,
    GenerateDelta,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    Vocabulary,
    join_answer,
)

#: Of channels to generate.
OPTIONS: list[tuple[str, Any]] = [*SIZES, *KEEP_ALIVE, *RECONNECT]


class GenerateClient(Closing):
    """One generate worker. Safe between threads.

    Every method raises the server's own error from ``triptych.errors``.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:9002",
        *,
        api_key: str | None = None,
        timeout_s: float | None = 600.0,
        retries: Retries = DEFAULT_RETRIES,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """A client of the worker at ``target`` (host:port).

        Args:
            target: its gRPC address.
            api_key: the panels' hop secret, where they have one.
            timeout_s: what a whole answer may take.
            retries: what happens where the worker has no room or is not reachable.
            credentials: of TLS; None: none.
        """
        self._name = f"generate at {target}"
        self._timeout_s = timeout_s
        self._retries = retries
        self._metadata = bearer_metadata(api_key)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)

    def stream(self, request: GenerateRequest) -> Stream[GenerateDelta]:
        """What every choice gains, as it comes."""
        return Stream(self._deltas(request))

    def generate(self, request: GenerateRequest) -> Generated:
        """The whole answer; its ``model`` is the one that the request names."""
        return whole_answer(request, list(self.stream(request)))

    def score(self, token_ids: Sequence[int], *, top: int = 0) -> Score:
        """Every token of a prompt, with its ``top`` best candidates; nothing is generated."""
        return score_of_answer(self.generate(score_request(token_ids, top)))

    def info(self) -> ModelInfo:
        return info_from_proto(self._call(self._stub.GetInfo, generate_pb2.GetInfoRequest()))

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End what runs under these ids, which is returned; streams finish with ``abort``."""
        message = generate_pb2.AbortRequest(request_ids=request_ids)
        return list(self._call(self._stub.Abort, message).aborted)

    def put_vocabulary(self, vocabulary: Vocabulary) -> None:
        """What the ids of a tokenizer mean: needed once, before structured outputs."""
        self._call(self._stub.PutVocabulary, vocabulary_to_proto(vocabulary))

    def close(self) -> None:
        self._channel.close()

    def _deltas(self, request: GenerateRequest) -> Generator[GenerateDelta, None, None]:
        attempts, has_begun = self._retries.begin(), False
        message = request_to_proto(request)
        while True:
            call = self._stub.Generate(message, **self._options())
            try:
                for delta in call:
                    has_begun = True
                    yield delta_from_proto(delta)
                return
            except grpc.RpcError as error:
                failure = from_rpc_error(error, self._name)
                if has_begun:
                    raise failure from error
                wait_s = attempts.wait_s(failure)
            finally:
                call.cancel()
            time.sleep(wait_s)

    def _call(self, method: Callable[..., Any], message: Any) -> Any:
        attempts = self._retries.begin()
        while True:
            try:
                return method(message, **self._options())
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(from_rpc_error(error, self._name))
            time.sleep(wait_s)

    def _options(self) -> dict[str, Any]:
        return {"timeout": self._timeout_s, "metadata": self._metadata}


def bearer_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)


def whole_answer(request: GenerateRequest, deltas: Sequence[GenerateDelta]) -> Generated:
    return join_answer(request, deltas, model=request.model or "", created=int(time.time()))


def score_request(token_ids: Sequence[int], top: int) -> GenerateRequest:
    """A request that scores its prompt and generates nothing."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=top)
    return GenerateRequest(token_ids=list(token_ids), sampling_params=params, return_token_ids=True)


def score_of_answer(answer: Generated) -> Score:
    if answer.prompt_token_ids is None or answer.prompt_logprobs is None:
        raise InternalError("the answer has no prompt_logprobs")
    return score_of_columns(answer.prompt_token_ids, answer.prompt_logprobs)
