"""The server's end of a session that has a connection of its own: on the event loop itself."""

import asyncio
import base64
import contextvars
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from triptych.drain import Drain
from triptych.errors import InternalError, MethodNotAllowedError, TriptychError
from triptych.hops import AUTHORIZATION, Hops
from triptych.http2_stream import KEEP_ALIVE, Headers, ServerStream
from triptych.rpc_edge import Call, current_call, status_of
from triptych.rpc_messages import MessageReader, framed
from triptych.sessions import Session, SessionKind, until_drained

_HEAD: Headers = ((":status", "200"), ("content-type", "application/grpc"))
#: What stands for itself in a status message; gRPC writes all else as percent and two digits.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

_log = logging.getLogger(__name__)


class ServedSession:
    """One caller's session, from its head on; whatever ends it, its requests end with it."""

    def __init__(
        self,
        kinds: Mapping[str, SessionKind],
        hops: Hops,
        drain: Drain,
        *,
        head_s: float = 20.0,
    ) -> None:
        """``kinds``: by path, ``/package.Service/Session``. ``head_s``: until it must be there."""
        self._kinds = kinds
        self._hops = hops
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._messages = MessageReader()
        self._kind: SessionKind | None = None
        self._session: Session[Any, Any] | None = None
        self._context = contextvars.copy_context()
        self._timer = self._loop.call_later(head_s, self._expect_head)
        self._draining: asyncio.Task[None] | None = None
        self._is_due = False
        self.stream = ServerStream(self, KEEP_ALIVE)

    # what the stream calls

    def headers_came(self, headers: dict[str, str]) -> None:
        self._timer.cancel()
        if self._session is not None:
            raise ConnectionError("a call has one head")
        path = headers.get(":path", "")
        try:
            self._hops.check(headers.get(AUTHORIZATION, ""))
            if path not in self._kinds:
                raise MethodNotAllowedError(f"there is no session at {path}")
        except TriptychError as error:
            self._fail(error)
            return
        self._kind = self._kinds[path]
        self._context.run(current_call.set, Call(path, headers))
        self.stream.respond(_HEAD)
        self._session = self._kind.open(self._wake)
        self._draining = self._loop.create_task(until_drained(self._session, self._drain))
        self._draining.add_done_callback(lambda _: self._wake())

    def data_came(self, data: bytes) -> None:
        if self._session is None or self._kind is None:
            raise ConnectionError("a body without a head")
        try:
            for message in self._messages.feed(data):
                self._context.run(self._session.apply, self._kind.read(message))
        except TriptychError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  # the request edge
            _log.exception("a session failed")
            self._fail(InternalError("internal error; see the server's log"))

    def writable(self) -> None:
        """Send what waits, as long as there is room."""
        self._is_due = False
        session, stream = self._session, self.stream
        if session is None:
            return
        try:
            while stream.is_writable and (step := session.take_step()) is not None:
                stream.write(framed(step.SerializeToString()))
        except Exception:  # noqa: BLE001  # nothing would be sent any more
            _log.exception("a session failed")
            self._fail(InternalError("internal error; see the server's log"))
            return
        if stream.is_writable and self._draining is not None and self._draining.done():
            self._finish([("grpc-status", "0")])

    def lost(self, why: str) -> None:
        self._leave()

    def _wake(self) -> None:
        """There may be a step to take; what one turn of the event loop brings goes out together."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.writable)

    def _expect_head(self) -> None:
        self._leave()
        self.stream.abort()

    def _fail(self, error: TriptychError) -> None:
        status = status_of(error)
        more = [(name, _text(value)) for name, value in status.trailers]
        message = quote(status.message, safe=_PLAIN)
        self._finish([("grpc-status", str(status.code.value[0])), ("grpc-message", message), *more])

    def _finish(self, trailers: Headers) -> None:
        """End the call; what the other end has no room for is dropped."""
        head = () if self._session is not None else _HEAD
        self._leave()
        self.stream.finish([*head, *trailers])

    def _leave(self) -> None:
        session, self._session = self._session, None
        self._timer.cancel()
        if self._draining is not None:
            self._draining.cancel()
        if session is not None:
            session.requests.cancel_all()


def _text(value: str | bytes) -> str:
    """As a header holds it: bytes in base64 (``-bin`` keys)."""
    return value if isinstance(value, str) else base64.b64encode(value).decode().rstrip("=")
