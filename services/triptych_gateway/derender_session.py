"""All streamed replies of this gateway at one derender, in one call."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from triptych import tracing
from triptych.convert_packed import error_from_proto, pack_deltas
from triptych.errors import BodyTooLargeError, DeadlineError, TriptychError, UnavailableError
from triptych.mailbox import size_of
from triptych.reply import Fed
from triptych.sessions import MAX_COMMAND_BYTES, MAX_DELTA, STEP_BYTES, first_part
from triptych.v1 import derender_pb2
from triptych.wire import GenerateDelta
from triptych_gateway.links import ReplyFeed
from triptych_gateway.panel_session import PanelSession
from triptych_gateway.session_call import SessionDoor

#: What the deltas of one message may hold before the others wait for the next one.
_COMMANDS_SIZE = STEP_BYTES // 14


@dataclass(frozen=True, slots=True)
class _Feed:
    key: int
    prompt_index: int
    delta: GenerateDelta


class DerenderSession(PanelSession[derender_pb2.DerenderStep]):
    """Opened by the first reply, and again by the first one after it broke."""

    def __init__(self, door: SessionDoor) -> None:
        super().__init__(door, derender_pb2.DerenderStep)
        self._keys = itertools.count(1)
        self._replies: dict[int, _Reply] = {}  # those that are open at derender
        self._opens: list[derender_pb2.OpenReply] = []
        self._feeds: list[_Feed] = []
        self._closes: list[int] = []

    @asynccontextmanager
    async def open(
        self, start: derender_pb2.DerenderStart, *, timeout_s: float
    ) -> AsyncIterator[ReplyFeed]:
        """One reply; its ``feed`` raises UnavailableError when the session broke."""
        message = derender_pb2.OpenReply(
            key=next(self._keys), start=start, timeout_s=timeout_s, trace=dict(tracing.carried())
        )
        if (size := message.ByteSize()) > MAX_COMMAND_BYTES:
            raise BodyTooLargeError(
                f"the prompts have {size:,} bytes for derender, limit is {MAX_COMMAND_BYTES:,}"
            )
        reply = _Reply(message.key, self._feed)
        self._replies[message.key] = reply
        self._opens.append(message)
        loop = asyncio.get_running_loop()
        loop.call_soon(self._wake)  # after what this turn sends to generate: that is urgent
        late = DeadlineError(f"{self._name} did not answer in time")
        timer = loop.call_later(timeout_s, reply.fail, late)
        try:
            yield reply
        finally:
            timer.cancel()
            if self._replies.pop(message.key, None) is not None:
                self._closes.append(message.key)
                self._wake()

    def _feed(self, feed: _Feed) -> None:
        self._feeds.append(feed)
        self._wake()

    def _take_commands(self) -> derender_pb2.DerenderCommands | None:
        """What waits, or its first part; nothing is closed before its last feed."""
        if not (self._opens or self._feeds or self._closes):
            return None
        opens, self._opens = first_part(self._opens, STEP_BYTES, derender_pb2.OpenReply.ByteSize)
        feeds: list[_Feed] = []
        if not self._opens:
            feeds, self._feeds = first_part(self._feeds, _COMMANDS_SIZE, lambda f: size_of(f.delta))
        closes: list[int] = []
        if not (self._opens or self._feeds):
            closes, self._closes = self._closes, []
        return derender_pb2.DerenderCommands(
            opens=opens,
            deltas=pack_deltas((feed.key, feed.delta) for feed in feeds) if feeds else None,
            prompt_indexes=[feed.prompt_index for feed in feeds],
            closes=closes,
        )

    def _take_step(self, step: derender_pb2.DerenderStep) -> None:
        chunks, done_prompts = iter(step.chunks), iter(step.done_prompts)
        rows = zip(step.keys, step.num_chunks, step.num_done, step.are_done, strict=True)
        for key, num_chunks, num_done, is_done in rows:
            fed = Fed(
                chunks=list(itertools.islice(chunks, num_chunks)),
                done_prompts=list(itertools.islice(done_prompts, num_done)),
                is_done=is_done,
            )
            if (reply := self._replies.get(key)) is not None:
                reply.answer(fed)
        for each in step.errors:
            if (reply := self._replies.pop(each.key, None)) is not None:
                reply.fail(error_from_proto(each))

    def _end(self, error: UnavailableError) -> None:
        """The call ended: its replies fail, and the next one opens another."""
        replies, self._replies = self._replies, {}
        self._opens, self._feeds, self._closes = [], [], []
        for reply in replies.values():
            reply.fail(error)


class _Reply:
    """One reply at derender; a ``ReplyFeed`` that is fed one delta at a time."""

    plain = None

    def __init__(self, key: int, feed: Callable[[_Feed], None]) -> None:
        self._key = key
        self._feed = feed
        self._error: TriptychError | None = None
        self._answer: asyncio.Future[Fed] | None = None

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        if self._error is not None:
            raise self._error
        if (size := size_of(delta)) > MAX_DELTA:
            raise BodyTooLargeError(
                f"a delta has {size:,} token ids and candidates, limit is {MAX_DELTA:,}"
            )
        self._answer = asyncio.get_running_loop().create_future()
        self._feed(_Feed(self._key, prompt_index, delta))
        return await self._answer

    def answer(self, fed: Fed) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(fed)

    def fail(self, error: TriptychError) -> None:
        self._error = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
