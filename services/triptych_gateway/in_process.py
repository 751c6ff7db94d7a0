"""Links to panels that live in this process; their classes are known here by shape only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import Generated, GenerateDelta
from triptych_gateway.links import ReplyFeed

#: Larger bodies and answers are worked on in a thread.
_INLINE_BYTES = 8192
_INLINE_TOKENS = 64

_T = TypeVar("_T")


class RendererLike(Protocol):
    def render_chat(self, body: bytes, *, request_id: str | None = None) -> Rendered: ...
    def render_completion(self, body: bytes, *, request_id: str | None = None) -> Rendered: ...
    def tokenize(self, body: bytes) -> bytes: ...
    def detokenize(self, body: bytes) -> bytes: ...
    def tokenizer_info(self) -> bytes: ...


class StreamLike(Protocol):
    def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed: ...


class DerendererLike(Protocol):
    def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> StreamLike: ...

    def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes: ...


class InProcessRender:
    """render in this process."""

    def __init__(self, renderer: RendererLike) -> None:
        self._renderer = renderer

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        chat, completion = self._renderer.render_chat, self._renderer.render_completion
        render = chat if endpoint == "chat" else completion
        return await _offload(
            len(body) > _INLINE_BYTES, lambda: render(body, request_id=request_id)
        )

    async def tokenize(self, body: bytes) -> bytes:
        return await _offload(len(body) > _INLINE_BYTES, lambda: self._renderer.tokenize(body))

    async def detokenize(self, body: bytes) -> bytes:
        return await _offload(len(body) > _INLINE_BYTES, lambda: self._renderer.detokenize(body))

    async def tokenizer_info(self) -> bytes:
        return self._renderer.tokenizer_info()


class InProcessDerender:
    """derender in this process."""

    def __init__(self, derenderer: DerendererLike) -> None:
        self._derenderer = derenderer

    @asynccontextmanager
    async def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AsyncIterator[ReplyFeed]:
        yield _InProcessFeed(
            self._derenderer.open(spec, request_id=request_id, created=created, prompts=prompts)
        )

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        num_tokens = sum(len(choice.token_ids) for each in answers for choice in each.choices)
        return await _offload(
            num_tokens > _INLINE_TOKENS,
            lambda: self._derenderer.whole(spec, answers, request_id=request_id, created=created),
        )


class _InProcessFeed:
    def __init__(self, stream: StreamLike) -> None:
        self._stream = stream

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        return self._stream.feed(prompt_index, delta)


async def _offload(is_large: bool, work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work) if is_large else work()
