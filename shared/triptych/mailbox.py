"""Where one request's deltas wait for their reader, merged, until the request ended."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import accumulate
from typing import Any, TypeVar

from triptych.errors import TriptychError
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta, join_deltas

_T = TypeVar("_T")

#: Offered a delta in the turn of the event loop in which it came: whether it was dealt with there.
#: What ends a choice it must leave to the reader.
Taker = Callable[[GenerateDelta], bool]

#: Tokens and candidates of one delta that is merged from several; it keeps messages below a
#: megabyte or so. What comes as one delta stays one.
MAX_MERGED = 65_536


class Mailbox:
    """The deltas of one request. All methods run on the event loop.

    A reader that is slow gets several steps in one delta, so what waits never exceeds the
    request's own output. Exactly one terminal is given: every choice's finish, or one error.
    Who reads by ``take`` is told by ``on_news`` that there is something. What comes while ``get``
    waits is offered to ``taker`` first; what that deals with does not wake the reader, and what it
    raises is the reader's.
    """

    def __init__(
        self,
        *,
        request_id: str,
        choices: Iterable[int],
        on_news: Callable[[], None] | None = None,
        taker: Taker | None = None,
    ) -> None:
        """``choices``: their indexes. ``opened``: now, by ``time.perf_counter``."""
        self.request_id = request_id
        self._unfinished = set(choices)
        self._pending: list[GenerateDelta] = []
        self._error: TriptychError | None = None
        self._on_news = on_news
        self._taker = taker
        self._reader: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self._read_out = asyncio.Event()
        self.opened = time.perf_counter()
        self.num_waiting = 0
        self.has_begun = False
        self.end: str | None = None

    @property
    def has_ended(self) -> bool:
        """The terminal has come; it may still wait for its reader. ``end`` names it."""
        return self.end is not None

    @property
    def has_waiting(self) -> bool:
        return bool(self._pending)

    def put(self, delta: GenerateDelta) -> None:
        """Keep a delta for the reader; ignored after the terminal.

        ``num_waiting`` counts the tokens that wait; ``has_begun`` tells that one has come.
        """
        if self.end is not None:
            return
        if self._is_taken(delta):
            return
        for choice in delta.choices:
            self.num_waiting += len(choice.token_ids)
            if choice.finish_reason is not None:
                self._finish_choice(choice.index, choice.finish_reason)
        self.has_begun = self.has_begun or self.num_waiting > 0
        self._pending.append(delta)
        self._tell()

    def finish(self, reason: FinishReason) -> None:
        """End every choice that has not finished."""
        ends = [
            ChoiceDelta(index=index, token_ids=[], finish_reason=reason)
            for index in sorted(self._unfinished)
        ]
        self.put(GenerateDelta(request_id=self.request_id, choices=ends))

    def fail(self, error: TriptychError) -> None:
        """End the request with ``error``, after what already waits."""
        if not self.has_ended:
            self._error = error
            self.end = error.code or error.type
            self._over.set()
            self._tell()

    async def unless_ended(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of ``work``; None, and ``work`` cancelled, when the terminal comes first."""
        task = asyncio.ensure_future(work)
        end = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for pending in (task, end):
                pending.cancel()
            await asyncio.gather(task, end, return_exceptions=True)

    async def get(self) -> GenerateDelta | None:
        """What waits as one delta, waiting for some; None when the request is over.

        Raises:
            TriptychError: the request ended with it.
        """
        while not self._pending:
            if self.end is not None:
                self._raise_error()
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self.take()

    def take(self) -> GenerateDelta | None:
        """What waits as one delta, or its first part where that is long; None when nothing does."""
        taken = self._pending
        if len(taken) < 2:
            self._pending, self.num_waiting = [], 0
        else:
            taken = self._take_parts()
        if self.end is not None and not self._pending:
            self._read_out.set()
        if len(taken) < 2:
            return taken[0] if taken else None
        choices, prompt_logprobs = join_deltas(taken)
        return GenerateDelta(
            request_id=self.request_id,
            choices=choices,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=sum(delta.cached_tokens for delta in taken),
        )

    async def until_read_out(self) -> None:
        """Wait until the reader has taken the last delta.

        Raises:
            TriptychError: the request ended with it.
        """
        await self._read_out.wait()
        self._raise_error()

    def _take_parts(self) -> list[GenerateDelta]:
        pending = self._pending
        sizes = accumulate(map(size_of, pending))
        count = max(1, sum(size <= MAX_MERGED for size in sizes))
        taken, self._pending = pending[:count], pending[count:]
        self.num_waiting -= sum(len(each.token_ids) for delta in taken for each in delta.choices)
        return taken

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _is_taken(self, delta: GenerateDelta) -> bool:
        if self._taker is None or (reader := self._waiting()) is None:
            return False
        try:
            return self._taker(delta)
        except Exception as error:  # noqa: BLE001  # `get` raises it
            reader.set_exception(error)
            return True

    def _waiting(self) -> "asyncio.Future[None] | None":
        """What ``get`` waits for while it does, with everything before read."""
        reader = self._reader
        return None if reader is None or reader.done() else reader

    def _tell(self) -> None:
        if (reader := self._waiting()) is not None:
            reader.set_result(None)
        if self._on_news is not None:
            self._on_news()

    def _finish_choice(self, index: int, reason: FinishReason) -> None:
        self._unfinished.discard(index)
        if not self._unfinished:
            self.end = reason
            self._over.set()


def size_of(delta: GenerateDelta) -> int:
    """Tokens and candidates of ``delta``: each is at most 14 bytes of a message."""
    scores = [choice.logprobs for choice in delta.choices]
    size = sum(len(choice.token_ids) for choice in delta.choices)
    return size + sum(len(each.token_ids) for each in (*scores, delta.prompt_logprobs) if each)
