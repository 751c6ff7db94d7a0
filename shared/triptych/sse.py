"""Server-sent events: frames, and a response that ends with its client and never falls silent."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from triptych.drain import stopping_error
from triptych.errors import InternalError, TriptychError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

_log = logging.getLogger(__name__)


def frame(chunks: Iterable[bytes]) -> bytes:
    """``chunks`` (JSON without line breaks) as data events."""
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)


def error_event(error: TriptychError) -> bytes:
    """The event that ends a stream that failed after its 200."""
    return b"event: error\ndata: " + msgspec.json.encode(error.body()) + b"\n\n"


class Primed:
    """Frames of which the first is there, so that a refusal keeps its status."""

    def __init__(self, first: bytes, frames: AsyncGenerator[bytes, None]) -> None:
        self._first: bytes | None = first
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await anext(self._frames)

    async def aclose(self) -> None:
        await self._frames.aclose()


async def primed(frames: AsyncGenerator[bytes, None]) -> Primed:
    """``frames``, of which the first has been waited for.

    Raises:
        TriptychError: whatever the stream raises before its first frame.
    """
    return Primed(await anext(frames, b""), frames)


class EventStream(Response):
    """Sends frames as they come; closes their generator when the client leaves or on any error."""

    media_type = "text/event-stream"

    def __init__(self, frames: Primed) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send, scope["triptych.notes"]))
        others = [
            asyncio.ensure_future(_disconnected(receive)),
            asyncio.ensure_future(self._keep_alive(send)),
        ]
        is_cut_off = False
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                scope["triptych.notes"]["client"] = "gone"
        except asyncio.CancelledError:  # the server stops, and this answer took too long to end
            is_cut_off = True
            scope["triptych.notes"]["error"] = stopping_error().code
        for task in (sending, *others):
            task.cancel()
        await asyncio.gather(sending, *others, return_exceptions=True)
        await self._frames.aclose()
        if is_cut_off:
            body = error_event(stopping_error())
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_all(self, send: Send, notes: dict[str, Any]) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        try:
            async for part in self._frames:
                self._last_sent = time.monotonic()
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except Exception as error:  # noqa: BLE001  # a request edge: it cannot be a status any more
            end = _event_of(error, notes)
            await send({"type": "http.response.body", "body": end, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        self._last_sent = time.monotonic()
        while True:
            silence_s = time.monotonic() - self._last_sent
            if silence_s >= KEEP_ALIVE_S:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                silence_s = 0.0
            await asyncio.sleep(KEEP_ALIVE_S - silence_s)


def _event_of(error: Exception, notes: dict[str, Any]) -> bytes:
    if not isinstance(error, TriptychError):
        _log.error("a stream failed", exc_info=error)
        error = InternalError("internal error; see the server's log")
    notes["error"] = error.code or error.type
    return error_event(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
