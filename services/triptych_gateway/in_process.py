"""Links to panels that live in this process; their classes are known here by shape only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from triptych.offload import offload, offload_body
from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import Generated, GenerateDelta, Vocabulary
from triptych_gateway.links import ReplyFeed

#: Larger answers are derendered in a thread.
_INLINE_TOKENS = 64


class RendererLike(Protocol):
    def render_chat(self, body: bytes, *, request_id: str | None = None) -> Rendered: ...
    def render_completion(self, body: bytes, *, request_id: str | None = None) -> Rendered: ...
    def tokenize(self, body: bytes) -> bytes: ...
    def detokenize(self, body: bytes) -> bytes: ...
    def tokenizer_info(self) -> bytes: ...


class StreamLike(Protocol):
    def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed: ...
    def plain(self, delta: GenerateDelta) -> bytes | None: ...


class DerendererLike(Protocol):
    def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> StreamLike: ...

    def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes: ...

    def vocabulary(self) -> Vocabulary: ...


class InProcessRender:
    """render in this process."""

    def __init__(self, renderer: RendererLike) -> None:
        self._renderer = renderer

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        chat, completion = self._renderer.render_chat, self._renderer.render_completion
        render = chat if endpoint == "chat" else completion
        return await offload_body(body, lambda: render(body, request_id=request_id))

    async def tokenize(self, body: bytes) -> bytes:
        return await offload_body(body, lambda: self._renderer.tokenize(body))

    async def detokenize(self, body: bytes) -> bytes:
        return await offload_body(body, lambda: self._renderer.detokenize(body))

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
        return await offload(
            lambda: self._derenderer.whole(spec, answers, request_id=request_id, created=created),
            is_large=num_tokens > _INLINE_TOKENS,
        )

    async def vocabulary(self) -> Vocabulary:
        return await offload(self._derenderer.vocabulary, is_large=True)


class _InProcessFeed:
    def __init__(self, stream: StreamLike) -> None:
        self._stream = stream
        self.plain = stream.plain

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        return self._stream.feed(prompt_index, delta)
