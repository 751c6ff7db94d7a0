"""A generate link over JSON, to a vLLM server with ``--enable-scale-out`` or ``--tokens-only``."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import httpx

from triptych.errors import DeadlineError, UnavailableError
from triptych.mailbox import Taker
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo, Vocabulary
from triptych_gateway import deadline, vllm_bodies

_GENERATE = "/inference/v1/generate"
_MODELS = "/v1/models"
_CONNECT_TIMEOUT_S = 5.0
_INFO_TIMEOUT_S = 2.0
#: Connections that stay open between requests.
_NUM_KEPT = 64


class JsonGenerate:
    """vLLM at ``address`` (``http://host:port``). ``timeout_s`` bounds a whole answer.

    Closing the deltas closes their connection, which aborts the request in vLLM.
    """

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self._name = f"vLLM at {address}"
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=address,
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_NUM_KEPT),
            trust_env=False,  # no proxy between the gateway and its workers
        )

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        end = asyncio.get_running_loop().time() + deadline.within(self._timeout_s)
        asked = self._client.build_request(
            "POST",
            _GENERATE,
            content=vllm_bodies.encode_request(request),
            headers={"content-type": "application/json"},
        )
        async with _HttpErrors(self._name):
            async with asyncio.timeout_at(end):
                response = await self._client.send(asked, stream=True)
            try:
                if response.is_error:
                    raise await _refusal(response, end)
                if not vllm_bodies.is_streamed(request):
                    yield vllm_bodies.delta_of_answer(await _body(response, end), request)
                    return
                async with contextlib.aclosing(self._events(response, end)) as events:
                    async for data in events:
                        if (delta := vllm_bodies.delta_of_event(data, request)) is not None:
                            yield delta
            finally:
                await response.aclose()

    async def info(self) -> ModelInfo:
        async with _HttpErrors(self._name):
            response = await self._client.get(_MODELS, timeout=_INFO_TIMEOUT_S)
        if response.is_error:
            raise vllm_bodies.error_of_answer(response.status_code, response.content, None)
        return vllm_bodies.info_of_models(response.content)

    async def put_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Nothing: vLLM has a tokenizer of its own and never asks for one."""

    async def close(self) -> None:
        await self._client.aclose()

    async def _events(self, response: httpx.Response, end: float) -> AsyncGenerator[bytes, None]:
        """The data of each event up to ``[DONE]``."""
        rest = b""
        chunks = response.aiter_bytes()
        while (chunk := await _next(chunks, end)) is not None:
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    return
                if event.startswith(b"data: "):
                    yield event.removeprefix(b"data: ")
        raise UnavailableError(f"{self._name} ended the stream early", retry_after_s=1)


class _HttpErrors:
    """``async with _HttpErrors(name):`` raises a failed exchange as one of the error tree."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise UnavailableError(f"{self._name} is not reachable", retry_after_s=1) from error
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            raise DeadlineError(f"{self._name} did not answer in time") from error
        if isinstance(error, httpx.RequestError):
            raise UnavailableError(f"{self._name} broke off: {error}", retry_after_s=1) from error


async def _next(chunks: AsyncIterator[bytes], end: float) -> bytes | None:
    async with asyncio.timeout_at(end):
        return await anext(chunks, None)


async def _body(response: httpx.Response, end: float) -> bytes:
    async with asyncio.timeout_at(end):
        return await response.aread()


async def _refusal(response: httpx.Response, end: float) -> Exception:
    body = await _body(response, end)
    retry_after = response.headers.get("retry-after")
    return vllm_bodies.error_of_answer(response.status_code, body, retry_after)
