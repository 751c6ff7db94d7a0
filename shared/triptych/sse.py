"""Server-sent events: frames, and a response that ends with its client and never falls silent."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from triptych.connected import WhileConnected
from triptych.drain import stopping_error
from triptych.errors import ClientGoneError, DeadlineError, InternalError, TriptychError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
#: Seconds in which a client reads what a stream whose time is over has left.
READ_OUT_S = 15.0

_log = logging.getLogger(__name__)


def frame(chunks: Iterable[bytes]) -> bytes:
    """``chunks`` (JSON without line breaks; one at least) as data events."""
    return b"data: %b\n\n" % b"\n\ndata: ".join(chunks)


def error_event(error: TriptychError) -> bytes:
    """The event that ends a stream that failed after its 200."""
    return b"event: error\ndata: " + msgspec.json.encode(error.body()) + b"\n\n"


class Outlet:
    """The body of one stream. A comment is sent whenever nothing was for ``KEEP_ALIVE_S``.

    Attributes:
        is_free: it is open, and nothing of ``send_at_once`` waits for the client to read.
    """

    def __init__(self) -> None:
        self.is_free = False
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Future[None] | None = None
        self._unsent: asyncio.Future[None] | None = None

    def open(self, send: Send) -> None:
        """Send by ``send`` from now on."""
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._last_sent = self._clock()
        self._set_timer(KEEP_ALIVE_S)
        self.is_free = True

    def send(self, part: bytes) -> Awaitable[None]:
        return self._sending(part) if self._unsent is None else self._send_later(part)

    def send_at_once(self, part: bytes) -> None:
        """Send ``part`` in this turn of the event loop, or let it wait; only while ``is_free``."""
        if (rest := _begun(self._sending(part))) is not None:
            self._unsent = asyncio.ensure_future(rest)
            self.is_free = False

    async def end(self, part: bytes) -> None:
        """Send the last part."""
        await self._until_free()
        self.close()
        await self._send({"type": "http.response.body", "body": part, "more_body": False})

    def close(self) -> None:
        """Send nothing more."""
        self.is_free = False
        for each in (self._timer, self._comment, self._unsent):
            if each is not None:
                each.cancel()

    def _sending(self, part: bytes) -> Awaitable[None]:
        self._last_sent = self._clock()
        return self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def _send_later(self, part: bytes) -> None:
        await self._until_free()
        await self._sending(part)

    async def _until_free(self) -> None:
        if self._unsent is not None:
            await asyncio.shield(self._unsent)
            self._unsent, self.is_free = None, True

    def _set_timer(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._keep_alive)

    def _keep_alive(self) -> None:
        silence_s = self._clock() - self._last_sent
        if silence_s >= KEEP_ALIVE_S:
            if self._comment is None or self._comment.done():  # else the client does not read
                self._comment = asyncio.ensure_future(self.send(KEEP_ALIVE))
            silence_s = 0.0
        self._set_timer(KEEP_ALIVE_S - silence_s)


async def primed(
    frames: AsyncGenerator[bytes, None],
    outlet: Outlet | None = None,
    *,
    until: float | None = None,
) -> "EventStream":
    """``frames`` as an answer, once the first has come, so that a refusal keeps its status.

    ``outlet``: where parts go out beside ``frames``. ``until``: the loop's time at which ``frames``
    end by themselves; a client that has not read them soon after is left. None: no limit.

    Raises:
        TriptychError: whatever the stream raises before its first frame.
    """
    return EventStream(await anext(frames, b""), frames, outlet or Outlet(), until)


class EventStream(Response):
    """Sends frames as they come; closes their generator when the client leaves or on any error."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        frames: AsyncGenerator[bytes, None],
        outlet: Outlet,
        until: float | None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._frames = frames
        self._outlet = outlet
        self._until = None if until is None else until + READ_OUT_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        notes = scope["triptych.notes"]
        outlet = self._outlet
        outlet.open(send)
        try:
            async with WhileConnected(receive), asyncio.timeout_at(self._until):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                await self._send_all(notes)
        except ClientGoneError:
            notes["client"] = "gone"
        except TimeoutError:
            notes["client"], notes["error"] = "stuck", DeadlineError.code
        except asyncio.CancelledError:  # the server stops, and this answer took too long to end
            notes["error"] = stopping_error().code
            await outlet.end(error_event(stopping_error()))
        finally:
            outlet.close()
            await self._frames.aclose()

    async def _send_all(self, notes: dict[str, Any]) -> None:
        outlet = self._outlet
        try:
            await outlet.send(self._first)
            async for part in self._frames:
                await outlet.send(part)
        except Exception as error:  # noqa: BLE001  # a request edge: it cannot be a status any more
            await outlet.send(error_event(_told(error, notes)))
        await outlet.end(b"")


class _Rest:
    """What is left of work that has begun; ``waits_for`` is what it waits for."""

    def __init__(self, waits_for: object, steps: Generator[Any, Any, None]) -> None:
        self._waits_for = waits_for
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits_for
        yield from self._steps


def _begun(work: Awaitable[None]) -> _Rest | None:
    """``work`` run up to its first wait, without a task; None when it has ended."""
    steps = work.__await__()
    try:
        waits_for = next(steps)
    except StopIteration:
        return None
    return _Rest(waits_for, steps)


def _told(error: Exception, notes: dict[str, Any]) -> TriptychError:
    """``error`` as the client is told it; noted for the request's log line."""
    if not isinstance(error, TriptychError):
        _log.error("a stream failed", exc_info=error)
        error = InternalError("internal error; see the server's log")
    notes["error"] = error.code or error.type
    return error
