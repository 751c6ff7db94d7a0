"""render and derender links over several replicas; a stream that breaks is replayed elsewhere."""

import contextlib
import functools
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

import msgspec

from triptych.errors import InternalError, TriptychError
from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import Generated, GenerateDelta, Vocabulary
from triptych_gateway.attempts import Attempts, Patience
from triptych_gateway.links import DerenderLink, RenderLink, ReplyFeed, VocabularySource
from triptych_gateway.replica import Replica
from triptych_gateway.replicas import ReplicaSet

_LinkT = TypeVar("_LinkT")
_T = TypeVar("_T")

_GIVEN = msgspec.msgpack.Decoder(tuple[int, GenerateDelta])


class Derender(DerenderLink, VocabularySource, Protocol):
    """One derender."""


async def asked(attempts: Attempts[_LinkT], ask: Callable[[_LinkT], Awaitable[_T]]) -> _T:
    """The answer of the first replica that gives one; ``ask`` must be safe to repeat."""
    while True:
        replica = await attempts.next()
        with replica.lease() as lease:
            try:
                return await lease.wait(functools.partial(ask, replica.link))
            except TriptychError as error:
                attempts.failed(replica, error)


class FailoverRender:
    """render at the replica with the fewest requests, and at another when that fails."""

    def __init__(self, replicas: ReplicaSet[RenderLink], patience: Patience) -> None:
        self._replicas = replicas
        self._patience = patience

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        return await self._ask(lambda link: link.render(endpoint, body, request_id))

    async def tokenize(self, body: bytes) -> bytes:
        return await self._ask(lambda link: link.tokenize(body))

    async def detokenize(self, body: bytes) -> bytes:
        return await self._ask(lambda link: link.detokenize(body))

    async def tokenizer_info(self) -> bytes:
        return await self._ask(lambda link: link.tokenizer_info())

    async def _ask(self, ask: Callable[[RenderLink], Awaitable[_T]]) -> _T:
        return await asked(Attempts(self._replicas, self._patience), ask)


class FailoverDerender:
    """derender at the replica with the fewest requests, and at another when that fails.

    Tokens have been generated for every call, so all of them wait for a replica as an answer does
    that has begun.
    """

    def __init__(self, replicas: ReplicaSet[Derender], patience: Patience) -> None:
        self._replicas = replicas
        self._patience = patience

    @asynccontextmanager
    async def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AsyncIterator[ReplyFeed]:
        def open_at(link: Derender) -> AbstractAsyncContextManager[ReplyFeed]:
            return link.open(spec, request_id=request_id, created=created, prompts=prompts)

        reply = _ReplayedReply(self._replicas, self._attempts(), open_at)
        async with contextlib.aclosing(reply):
            await reply.begin()
            yield reply

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        return await asked(
            self._attempts(),
            lambda link: link.whole(spec, answers, request_id=request_id, created=created),
        )

    async def vocabulary(self) -> Vocabulary:
        return await asked(self._attempts(), lambda link: link.vocabulary())

    def _attempts(self) -> Attempts[Derender]:
        return Attempts(self._replicas, self._patience, has_begun=True)


class _ReplayedReply:
    """A streamed reply. When its derender fails, another is given all deltas again.

    derender is a function of the spec, ``created`` and the deltas in order, so the other writes the
    same chunks; those that were sent already are left out once their checksums were compared.
    Deltas are kept as msgpack: a token with 20 candidates is 390 bytes, a quarter of the structs.
    """

    plain = None

    def __init__(
        self,
        replicas: ReplicaSet[Derender],
        attempts: Attempts[Derender],
        open_at: Callable[[Derender], AbstractAsyncContextManager[ReplyFeed]],
    ) -> None:
        self._replicas = replicas
        self._attempts = attempts
        self._open_at = open_at
        self._given: list[bytes] = []
        self._checksum = 0
        self._place: _Place | None = None

    async def begin(self) -> None:
        """Open it somewhere, so that the first delta does not wait for that."""
        while self._place is None:
            try:
                await self._find_place()
            except TriptychError as error:
                await self._lose_place(error)

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        while True:
            try:
                place = self._place or await self._find_place()
                fed = await place.feed(prompt_index, delta)
            except TriptychError as error:
                await self._lose_place(error)
            else:
                self._attempts.progressed()
                self._given.append(msgspec.msgpack.encode((prompt_index, delta)))
                self._checksum = _checksum(fed, self._checksum)
                return fed

    async def aclose(self) -> None:
        if self._place is not None:
            await self._place.close()

    async def _find_place(self) -> "_Place":
        """The reply at another derender, with all that was given so far."""
        self._place = place = _Place(await self._attempts.next())
        await place.open(self._open_at)
        self._replicas.num_resumes += bool(self._given)
        checksum = 0
        for given in self._given:
            checksum = _checksum(await place.feed(*_GIVEN.decode(given)), checksum)
        if checksum != self._checksum:
            raise InternalError("two replicas of derender write different replies")
        return place

    async def _lose_place(self, error: TriptychError) -> None:
        """Leave the derender that failed with ``error``.

        Raises:
            TriptychError: ``error``, if no other is to be asked.
        """
        place, self._place = self._place, None
        if place is None:
            raise error
        await place.close()
        self._attempts.failed(place.replica, error)


class _Place:
    """Where a reply is written."""

    def __init__(self, replica: Replica[Derender]) -> None:
        self.replica = replica
        self._stack = AsyncExitStack()
        self._lease = self._stack.enter_context(replica.lease())
        self._reply: ReplyFeed | None = None

    async def open(
        self, open_at: Callable[[Derender], AbstractAsyncContextManager[ReplyFeed]]
    ) -> None:
        enter, link = self._stack.enter_async_context, self.replica.link
        self._reply = await self._lease.wait(lambda: enter(open_at(link)))

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        assert self._reply is not None, "a place is open before it is fed"
        return await self._lease.wait(functools.partial(self._reply.feed, prompt_index, delta))

    async def close(self) -> None:
        await self._stack.aclose()


def _checksum(fed: Fed, before: int) -> int:
    """Of all chunks so far, whatever deltas they came with."""
    for chunk in fed.chunks:
        before = zlib.crc32(chunk, before)
    return before
