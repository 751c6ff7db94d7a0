"""``AsyncClient``: ``Client`` for asyncio. Methods and errors are the same."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, Unpack

import httpx

from triptych.client import calls, panels, scores
from triptych.client.calls import Call, Plan
from triptych.client.closing import AsyncClosing
from triptych.client.events import EventReader
from triptych.client.failures import error_of_answer, http_errors
from triptych.client.fields import (
    ChatFields,
    CompletionFields,
    Messages,
    OnePrompt,
    Prompt,
    TemplateFields,
)
from triptych.client.http import http_options
from triptych.client.replies import ChatChunk, ChatReply, Completion, ServedModel, Tokens
from triptych.client.retries import DEFAULT_RETRIES, Retries
from triptych.client.scores import LabelScore, Score
from triptych.client.streams import AsyncStream
from triptych.errors import TriptychError
from triptych.wire import Generated, GenerateDelta, GenerateRequest

_T = TypeVar("_T")


class AsyncClient(AsyncClosing):
    """``Client`` for asyncio; what its methods do says ``Client``."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float | None = 600.0,
        retries: Retries = DEFAULT_RETRIES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """As ``Client``."""
        self._server = url.rstrip("/")
        self._retries = retries
        self._http = httpx.AsyncClient(**http_options(self._server, api_key, timeout_s, tls))

    async def chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> ChatReply:
        return await self._send(calls.chat(messages, fields))

    def stream_chat(
        self, messages: Messages, **fields: Unpack[ChatFields]
    ) -> AsyncStream[ChatChunk]:
        return AsyncStream(self._parts(calls.stream_chat(messages, fields)))

    async def complete(self, prompt: Prompt, **fields: Unpack[CompletionFields]) -> Completion:
        return await self._send(calls.complete(prompt, fields))

    def stream_complete(
        self, prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> AsyncStream[Completion]:
        return AsyncStream(self._parts(calls.stream_complete(prompt, fields)))

    async def score(self, prompt: OnePrompt, *, top: int = 0) -> Score:
        return (await self.score_batch([prompt], top=top))[0]

    async def score_batch(self, prompts: Sequence[OnePrompt], *, top: int = 0) -> list[Score]:
        return await self._send(scores.score(prompts, top))

    async def score_labels(
        self, prompt: OnePrompt, labels: Sequence[OnePrompt]
    ) -> list[LabelScore]:
        return await self._run(scores.score_labels(prompt, labels))

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        return await self._send(calls.tokenize(text, add_special_tokens=add_special_tokens))

    async def tokenize_chat(self, messages: Messages, **fields: Unpack[TemplateFields]) -> Tokens:
        return await self._send(calls.tokenize_chat(messages, fields))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._send(calls.detokenize(token_ids))

    async def models(self) -> list[ServedModel]:
        return await self._send(calls.models())

    async def render_chat(
        self, messages: Messages, **fields: Unpack[ChatFields]
    ) -> GenerateRequest:
        return await self._send(panels.render_chat(messages, fields))

    async def render_completion(
        self, prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> list[GenerateRequest]:
        return await self._send(panels.render_completion(prompt, fields))

    async def generate(self, request: GenerateRequest) -> Generated:
        return await self._send(panels.generate(request))

    def stream_generate(self, request: GenerateRequest) -> AsyncStream[GenerateDelta]:
        return AsyncStream(self._parts(panels.stream_generate(request)))

    async def derender_chat(
        self, answer: Generated, messages: Messages, **fields: Unpack[ChatFields]
    ) -> ChatReply:
        return await self._send(panels.derender_chat(answer, messages, fields))

    async def derender_completion(
        self, answers: Sequence[Generated], prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> Completion:
        return await self._send(panels.derender_completion(answers, prompt, fields))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _run(self, plan: Plan[_T]) -> _T:
        answer = None
        while True:
            try:
                call = plan.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = await self._send(call)

    async def _send(self, call: Call[_T]) -> _T:
        with http_errors(self._server):
            async with aclosing(await self._open(call)) as response:
                return call.read(await response.aread())

    async def _parts(self, call: Call[_T]) -> AsyncGenerator[_T, None]:
        events = EventReader()
        with http_errors(self._server):
            async with aclosing(await self._open(call)) as response:
                async for part in response.aiter_bytes():
                    for data in events.feed(part):
                        yield call.read(data)
        events.end()

    async def _open(self, call: Call[Any]) -> httpx.Response:
        attempts = self._retries.begin()
        while True:
            try:
                return await self._try(call)
            except TriptychError as error:
                wait_s = attempts.wait_s(error)
            await asyncio.sleep(wait_s)

    async def _try(self, call: Call[Any]) -> httpx.Response:
        with http_errors(self._server):
            request = self._http.build_request(call.method, call.path, content=call.body)
            response = await self._http.send(request, stream=True)
            if response.is_success:
                return response
            async with aclosing(response):
                body, retry_after = await response.aread(), response.headers.get("retry-after")
                raise error_of_answer(response.status_code, body, retry_after)
