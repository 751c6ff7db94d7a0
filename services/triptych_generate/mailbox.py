"""Where one request's updates wait for its reader, merged, until the request ended."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from triptych.errors import TriptychError
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta, join_deltas
from triptych_generate.engine import Update

_T = TypeVar("_T")


class Mailbox:
    """The updates of one request. All methods run on the event loop.

    A reader that is slow gets several steps in one delta, so what waits never exceeds the
    request's own output. Exactly one terminal is given: every choice's finish, or one error.
    """

    def __init__(self, *, request_id: str, choices: Iterable[int]) -> None:
        """``choices``: their indexes."""
        self._request_id = request_id
        self._unfinished = set(choices)
        self._pending: list[GenerateDelta] = []
        self._error: TriptychError | None = None
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self.end: str | None = None

    @property
    def has_ended(self) -> bool:
        """The terminal has come; it may still wait for its reader. ``end`` names it."""
        return self.end is not None

    def put(self, update: Update) -> None:
        """Keep an update for the reader; ignored after the terminal."""
        if self.has_ended:
            return
        if update.error is not None:
            self.fail(update.error)
            return
        for choice in update.choices:
            if choice.finish_reason is not None:
                self._finish_choice(choice.index, choice.finish_reason)
        self._pending.append(
            GenerateDelta(
                request_id=self._request_id,
                choices=update.choices,
                prompt_logprobs=update.prompt_logprobs,
                cached_tokens=update.cached_tokens,
            )
        )
        self._news.set()

    def finish(self, reason: FinishReason) -> None:
        """End every choice that has not finished."""
        if self.has_ended:
            return
        ends = [
            ChoiceDelta(index=index, token_ids=[], finish_reason=reason)
            for index in sorted(self._unfinished)
        ]
        self._pending.append(GenerateDelta(request_id=self._request_id, choices=ends))
        for end in ends:
            self._finish_choice(end.index, reason)
        self._news.set()

    def fail(self, error: TriptychError) -> None:
        """End the request with ``error``, after what already waits."""
        if not self.has_ended:
            self._error = error
            self.end = error.code or error.type
            self._over.set()
            self._news.set()

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
        """All that waits as one delta, waiting for some; None when the request is over.

        Raises:
            TriptychError: the request ended with it.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                return None
            self._news.clear()
            await self._news.wait()
        pending, self._pending = self._pending, []
        if len(pending) == 1:
            return pending[0]
        choices, prompt_logprobs = join_deltas(pending)
        return GenerateDelta(
            request_id=self._request_id,
            choices=choices,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=sum(delta.cached_tokens for delta in pending),
        )

    def _finish_choice(self, index: int, reason: FinishReason) -> None:
        self._unfinished.discard(index)
        if not self._unfinished:
            self.end = reason
            self._over.set()
