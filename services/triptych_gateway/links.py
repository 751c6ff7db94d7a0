"""How the gateway reaches the panels: one interface each, in this process or over gRPC."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from triptych.mailbox import Taker
from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import Generated, GenerateDelta, GenerateRequest, ModelInfo, Vocabulary

#: The chunk of a delta, at once; None: it must be fed.
Plain = Callable[[GenerateDelta], bytes | None]


class RenderLink(Protocol):
    """render, wherever it runs. Bodies are JSON as the client sent it."""

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered: ...

    async def tokenize(self, body: bytes) -> bytes: ...

    async def detokenize(self, body: bytes) -> bytes: ...

    async def tokenizer_info(self) -> bytes: ...


class GenerateLink(Protocol):
    """generate, wherever it runs.

    Closing the deltas aborts the request. Those that a link offers to ``taker``, and it takes, are
    not given again; a link need not offer any.
    """

    def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]: ...

    async def info(self) -> ModelInfo: ...


class Worker(GenerateLink, Protocol):
    """One generate worker."""

    async def put_vocabulary(self, vocabulary: Vocabulary) -> None: ...


class VocabularySource(Protocol):
    """Who knows what the token ids mean: derender."""

    async def vocabulary(self) -> Vocabulary: ...


class ReplyFeed(Protocol):
    """One reply being derendered."""

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed: ...

    @property
    def plain(self) -> Plain | None:
        """The short way of the only prompt's deltas; None where another process has the state."""


class DerenderLink(Protocol):
    """derender, wherever it runs. ``created``: seconds since 1970, UTC."""

    def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AbstractAsyncContextManager[ReplyFeed]: ...

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes: ...


class Closable(Protocol):
    """A link that holds a connection."""

    async def close(self) -> None: ...
