"""The server's half of a session: one call that carries many requests, each a piece of work."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from triptych.drain import Drain, stopping_error
from triptych.errors import DeadlineError, InternalError, InvalidRequestError, TriptychError
from triptych.rpc_edge import abort_call, traced_request
from triptych.rpc_options import MAX_MESSAGE_BYTES

CommandsT = TypeVar("CommandsT", contravariant=True)
StepT = TypeVar("StepT", covariant=True)
_T = TypeVar("_T")

#: Bytes after which what waits goes into the next message, so that no message comes near the limit.
STEP_BYTES = 2**20
#: Bytes of one request or one reply's prompts in a session.
MAX_COMMAND_BYTES = MAX_MESSAGE_BYTES // 2
#: Tokens and candidates that one delta may have: 14 bytes each at most, and half of a message.
MAX_DELTA = MAX_MESSAGE_BYTES // 28

_log = logging.getLogger(__name__)


class Session(Protocol[CommandsT, StepT]):
    """The requests of one caller. It says when there may be a step to take."""

    requests: "SessionRequests"

    def apply(self, commands: CommandsT, /) -> None:
        """Take commands; raises InvalidRequestError where they break the session."""
        ...

    def take_step(self) -> StepT | None:
        """The next message for the caller; None when nothing waits."""
        ...


@dataclass(frozen=True, slots=True)
class SessionKind:
    """A panel's sessions. ``service``: its full name; ``commands``: what a caller sends.

    ``open`` gives a new session; it is given what that calls when there may be a step to take.
    """

    service: str
    commands: type[Message]
    open: Callable[[Callable[[], None]], Session[Any, Message]]

    @property
    def path(self) -> str:
        return f"/{self.service}/Session"

    def read(self, message: bytes) -> Message:
        """The commands in ``message``.

        Raises:
            InvalidRequestError: it is something else.
        """
        try:
            return self.commands.FromString(message)
        except DecodeError as error:
            raise InvalidRequestError(f"no {self.commands.DESCRIPTOR.name}: {error}") from error


class SessionRequests:
    """The requests of one session by key, a task each, so that the drain counts and ends them."""

    def __init__(self, drain: Drain, on_error: Callable[[int, TriptychError], None]) -> None:
        """``on_error`` gets the error that ended a request, unless its caller ended it."""
        self._drain = drain
        self._on_error = on_error
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def start(
        self,
        key: int,
        timeout_s: float,
        work: Callable[[], Awaitable[None]],
        *,
        request_id: str,
        trace: Mapping[str, str],
    ) -> None:
        """Run ``work``, for ``timeout_s`` at most (0 = no limit), as a span of the caller's trace.

        Raises:
            UnavailableError: the server drains.
            InvalidRequestError: a request of this key runs.
        """
        if self._drain.is_draining:
            raise stopping_error()
        self._check_free(key)
        traced = traced_request(request_id, trace)
        self._tasks[key] = asyncio.create_task(self._run(key, timeout_s, work, traced))
        self._tasks[key].add_done_callback(lambda _: self._forget(key))
        self._is_idle.clear()

    def run_at_once(
        self, key: int, work: Callable[[], None], *, request_id: str, trace: Mapping[str, str]
    ) -> None:
        """Run ``work`` in this turn of the event loop, without a task; its errors are told too."""
        try:
            self._check_free(key)
            with traced_request(request_id, trace), self._drain.turn():
                work()
        except TriptychError as error:
            self._on_error(key, error)
        except Exception:  # noqa: BLE001  # the request edge
            self._failed(key)

    def end(self, key: int) -> None:
        """End a request whose caller does not want it any more; unknown ones have ended."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """End every request, soon."""
        for task in self._tasks.values():
            task.cancel()

    async def end_all(self) -> None:
        """End every request and wait until they are."""
        tasks = list(self._tasks.values())
        self.cancel_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until_idle(self) -> None:
        await self._is_idle.wait()

    async def _run(
        self,
        key: int,
        timeout_s: float,
        work: Callable[[], Awaitable[None]],
        traced: AbstractContextManager[None],
    ) -> None:
        try:
            with traced, self._drain.work():
                async with asyncio.timeout(timeout_s or None):
                    await work()
        except TriptychError as error:
            self._on_error(key, error)
        except TimeoutError:
            self._on_error(key, DeadlineError(f"the answer took longer than {timeout_s:g} s"))
        except asyncio.CancelledError:
            if not self._drain.has_cut_off:
                raise
            self._on_error(key, stopping_error())
        except Exception:  # noqa: BLE001  # the request edge
            self._failed(key)

    def _check_free(self, key: int) -> None:
        if key in self._tasks:
            raise InvalidRequestError(f"the key {key} is in use in this session", param="key")

    def _failed(self, key: int) -> None:
        _log.exception("a request of a session failed")
        self._on_error(key, InternalError("internal error; see the server's log"))

    def _forget(self, key: int) -> None:
        del self._tasks[key]
        if not self._tasks:
            self._is_idle.set()


def first_part(items: list[_T], limit: int, size: Callable[[_T], int]) -> tuple[list[_T], list[_T]]:
    """The first of ``items``, up to ``limit`` together but one at least, and the others."""
    count = max(1, sum(total <= limit for total in accumulate(map(size, items))))
    return items[:count], items[count:]


async def serve_session(
    open_session: Callable[[Callable[[], None]], Session[CommandsT, StepT]],
    commands: AsyncIterator[CommandsT],
    context: grpc.aio.ServicerContext[Any, Any],
    drain: Drain,
) -> AsyncGenerator[StepT, None]:
    """The steps of a session in grpc.aio until its caller ends it, or the server has drained.

    Whatever ends it, its requests end with it.
    """
    news = asyncio.Event()
    session = open_session(news.set)
    tasks = [
        asyncio.create_task(_apply_all(session, commands)),
        asyncio.create_task(until_drained(session, drain)),
    ]
    for task in tasks:
        task.add_done_callback(lambda _: news.set())
    try:
        while not any(task.done() for task in tasks):
            await news.wait()
            news.clear()
            while (step := session.take_step()) is not None:
                yield step
        if tasks[0].done() and (error := tasks[0].exception()) is not None:
            await abort_call(context, _as_ours(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.requests.end_all()


async def until_drained(session: Session[CommandsT, StepT], drain: Drain) -> None:
    """Return when the server drains and no request of the session runs."""
    await drain.until_begun()
    await session.requests.until_idle()


async def _apply_all(
    session: Session[CommandsT, StepT], commands: AsyncIterator[CommandsT]
) -> None:
    async for each in commands:
        session.apply(each)


def _as_ours(error: BaseException) -> TriptychError:
    if isinstance(error, TriptychError):
        return error
    _log.error("a session failed", exc_info=error)
    return InternalError("internal error; see the server's log")
