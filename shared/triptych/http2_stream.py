"""HTTP/2 with one stream, on a connection of its own: the client's end and the server's (RFC 9113).

The client says in its first settings that there is but one stream. Settings are a connection's, so
no proxy hands them on, and a server that does not know this one ignores it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import hpack
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from triptych.rpc_options import KEEP_ALIVE_S, PING_TIMEOUT_S

Headers = Iterable[tuple[str, str]]

_STREAM = 1
_DATA = 0
_HEADER_LEN = 9
_DATA_OF_STREAM = bytes((_DATA, 0)) + _STREAM.to_bytes(4, "big")
#: Bytes of a frame that either end takes, and of the header blocks of one message.
_MAX_FRAME = _MAX_BLOCK = 65_536
#: Bytes that may be under way, each way, until settings say otherwise (RFC 9113, 6.9.2).
_DEFAULT_WINDOW = 65_535
#: Bytes that a client may have under way.
_SERVER_WINDOW = 2**20
#: Answers to pings and settings that may wait for an end that does not read them.
_MAX_UNREAD = 100
#: Seconds that a client has to close a connection whose call has ended.
_LINGER_S = 5.0
#: Names whose values no table of the connection keeps.
_SECRETS = frozenset({"authorization"})

#: From the range for experiments, where gRPC has its own.
_ONE_STREAM_SETTING = 0xF7C1

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: What the client's end sends first. Its window stays small: a worker merges what its caller is not
#: ready for, which costs both less than reading it piece by piece.
ONE_STREAM = (
    PREFACE
    + SettingsFrame(
        settings={
            SettingsFrame.ENABLE_PUSH: 0,
            SettingsFrame.INITIAL_WINDOW_SIZE: _DEFAULT_WINDOW,
            SettingsFrame.MAX_FRAME_SIZE: _MAX_FRAME,
            _ONE_STREAM_SETTING: 1,
        }
    ).serialize()
)


class StreamOwner(Protocol):
    """Who is told what comes; never anything after ``lost``."""

    def headers_came(self, headers: dict[str, str]) -> None:
        """The other end's head, or an answer's trailers."""

    def data_came(self, data: bytes) -> None:
        """A part of the other end's body."""

    def writable(self) -> None:
        """There is room: the connection stands, or what was written is on its way."""

    def lost(self, why: str) -> None:
        """The stream has ended, or its connection was lost."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """After ``silence_s`` the other end is asked for a sign of life; it has ``answer_s`` for it."""

    silence_s: float = KEEP_ALIVE_S
    answer_s: float = PING_TIMEOUT_S


KEEP_ALIVE = KeepAlive()


class Http2Stream(asyncio.Protocol, ABC):
    """One request and its answer, both open until one end ends them.

    Frames of a body are read here, without a library: they are all that comes often.
    """

    def __init__(self, owner: StreamOwner, *, window: int, keep_alive: KeepAlive) -> None:
        """``window``: bytes that the other end may have under way."""
        self.on_gone: Callable[[], None] | None = None  # called when the connection is
        self._owner: StreamOwner | None = owner
        self._window = window
        self._keep_alive = keep_alive
        self._timer: asyncio.TimerHandle | None = None
        self._num_received = self._num_seen = 0
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._block = b""
        self._has_end = False
        self._num_unacknowledged = 0
        self._outgoing = bytearray()
        self._is_paused = False
        self._num_unread = 0
        # what the other end takes, until it says otherwise (RFC 9113, 6.5.2 and 6.9.2)
        self._max_frame = 16_384
        self._initial_window = _DEFAULT_WINDOW
        self._stream_window = self._connection_window = _DEFAULT_WINDOW

    @property
    def is_writable(self) -> bool:
        """Nothing that was written waits here."""
        return self._transport is not None and not self._outgoing and not self._is_paused

    def write(self, data: bytes) -> None:
        """Send ``data`` as the other end has room for it."""
        if self._transport is not None and not self._outgoing and 0 < len(data) <= self._room():
            self._send_frame(self._transport, data)
        else:
            self._outgoing += data
            self._send_outgoing()

    def abort(self) -> None:
        """End the stream and its connection; the owner hears no more."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    @abstractmethod
    def _begin(self) -> bytes:
        """What this end sends first."""

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._owner is None:  # aborted meanwhile
            self._transport.abort()
            return
        self._watch()
        self._transport.write(self._begin())
        self._owner.writable()

    def data_received(self, data: bytes) -> None:
        if self._owner is None:
            return
        self._num_received += 1
        data = self._received + data if self._received else data
        start = 0
        try:
            while len(data) - start >= _HEADER_LEN and self._owner is not None:
                length = int.from_bytes(data[start : start + 3], "big")
                if length > _MAX_FRAME:
                    raise ConnectionError("a frame is too long")
                body = start + _HEADER_LEN
                if body + length > len(data):
                    break
                self._take_frame(data[start:body], data[body : body + length])
                start = body + length
        except (ConnectionError, HyperframeError, hpack.HPACKError) as error:
            self._lose(f"it broke HTTP/2: {error}")
        self._received = data[start:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_gone is not None:
            self.on_gone()
        self._lose(str(exc) if exc else "the connection was closed")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._num_unread = 0
        self._go_on()

    # frames that come

    def _take_frame(self, header: bytes, body: bytes) -> None:
        kind, flags = header[3:5]
        if kind == _DATA and not flags:
            self._take_data(body, len(body))
            return
        frame, _ = Frame.parse_frame_header(memoryview(header))
        frame.parse_body(memoryview(body))
        self._take(frame)

    def _take_data(self, data: bytes, num_bytes: int) -> None:
        assert self._owner is not None, "frames are taken for an owner"
        self._num_unacknowledged += num_bytes
        if self._num_unacknowledged > self._window // 2:
            self._send(
                WindowUpdateFrame(0, window_increment=self._num_unacknowledged),
                WindowUpdateFrame(_STREAM, window_increment=self._num_unacknowledged),
            )
            self._num_unacknowledged = 0
        self._owner.data_came(data)

    def _take(self, frame: Frame) -> None:
        """Any frame but the usual ones of the body."""
        match frame:
            case DataFrame():
                self._take_data(frame.data, frame.flow_controlled_length)
            case HeadersFrame() | ContinuationFrame():
                self._take_block(frame)
            case SettingsFrame() if "ACK" not in frame.flags:
                self._take_settings(frame.settings)
            case PingFrame() if "ACK" not in frame.flags:
                self._answer(PingFrame(opaque_data=frame.opaque_data, flags=["ACK"]))
            case WindowUpdateFrame():
                self._widen(frame)
            case RstStreamFrame():
                self._lose(f"it ended the stream with error {frame.error_code}")
            case GoAwayFrame() if frame.last_stream_id < _STREAM:
                self._lose("it takes no more calls")
        self._has_end = self._has_end or "END_STREAM" in frame.flags
        if self._has_end and not self._block:
            self._lose("it ended the stream")

    def _take_block(self, frame: HeadersFrame | ContinuationFrame) -> None:
        if frame.stream_id != _STREAM:
            raise ConnectionError("there is one stream")
        self._block += frame.data
        if len(self._block) > _MAX_BLOCK:
            raise ConnectionError("its headers are too long")
        if "END_HEADERS" in frame.flags and self._owner is not None:
            fields = self._decoder.decode(self._block, raw=True)
            self._block = b""
            text = {_text(name): _text(value) for name, value in fields}
            self._owner.headers_came(text)

    def _take_settings(self, settings: dict[int, int]) -> None:
        self._max_frame = settings.get(SettingsFrame.MAX_FRAME_SIZE, self._max_frame)
        initial = settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, self._initial_window)
        self._stream_window += initial - self._initial_window
        self._initial_window = initial
        self._answer(SettingsFrame(flags=["ACK"]))
        self._go_on()

    def _widen(self, frame: WindowUpdateFrame) -> None:
        if frame.stream_id:
            self._stream_window += frame.window_increment
        else:
            self._connection_window += frame.window_increment
        self._go_on()

    def _lose(self, why: str) -> None:
        owner = self._owner
        self.abort()
        if owner is not None:
            owner.lost(why)

    def _leave(self) -> None:
        self._owner = None
        if self._timer is not None:
            self._timer.cancel()

    # frames that go

    def _send(self, *frames: Frame) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(frame.serialize() for frame in frames))

    def _answer(self, frame: Frame) -> None:
        """Send what the other end asked for, as long as it reads that."""
        self._num_unread += self._is_paused
        if self._num_unread > _MAX_UNREAD:
            raise ConnectionError("it asks and does not read")
        self._send(frame)

    def _headers(self, fields: Headers, *flags: str) -> HeadersFrame:
        secret = [(name, value, name in _SECRETS) for name, value in fields]
        return HeadersFrame(_STREAM, self._encoder.encode(secret), flags=["END_HEADERS", *flags])

    def _send_outgoing(self) -> None:
        if self._transport is None:
            return
        sent = 0
        while size := min(len(self._outgoing) - sent, self._room()):
            self._send_frame(self._transport, self._outgoing[sent : sent + size])
            sent += size
        del self._outgoing[:sent]

    def _room(self) -> int:
        """Bytes of the body that may go out in one frame now."""
        return min(self._max_frame, max(0, self._stream_window), self._connection_window)

    def _send_frame(self, transport: asyncio.Transport, data: bytes | bytearray) -> None:
        size = len(data)
        transport.write(size.to_bytes(3, "big") + _DATA_OF_STREAM + data)
        self._stream_window -= size
        self._connection_window -= size

    def _go_on(self) -> None:
        """There may be room again."""
        self._send_outgoing()
        if self.is_writable and self._owner is not None:
            self._owner.writable()

    # signs of life

    def _watch(self) -> None:
        """Look again after a while, and ask a silent other end for a sign of life."""
        self._num_seen = self._num_received
        self._timer = asyncio.get_running_loop().call_later(self._keep_alive.silence_s, self._look)

    def _look(self) -> None:
        if self._num_seen != self._num_received:
            self._watch()
            return
        self._send(PingFrame(opaque_data=bytes(8)))
        expect = self._expect_sign
        self._timer = asyncio.get_running_loop().call_later(self._keep_alive.answer_s, expect)

    def _expect_sign(self) -> None:
        if self._num_seen != self._num_received:
            self._watch()
        else:
            self._lose("no sign of life")


class ClientStream(Http2Stream):
    """The end that asks, with ``head``; it hears the answer's head, body and trailers."""

    def __init__(self, head: Headers, owner: StreamOwner, keep_alive: KeepAlive) -> None:
        super().__init__(owner, window=_DEFAULT_WINDOW, keep_alive=keep_alive)
        self._head = head

    def _begin(self) -> bytes:
        return ONE_STREAM + self._headers(self._head).serialize()


class ServerStream(Http2Stream):
    """The end that is asked, from after the client's preface on."""

    def __init__(self, owner: StreamOwner, keep_alive: KeepAlive) -> None:
        super().__init__(owner, window=_SERVER_WINDOW, keep_alive=keep_alive)

    def respond(self, head: Headers) -> None:
        """Begin the answer."""
        self._send(self._headers(head))

    def finish(self, trailers: Headers) -> None:
        """End the answer; what waits for room is dropped. Nobody hears more.

        The client closes the connection. Closed here, with data from it unread, it could take the
        trailers back (RFC 9112, 9.6).
        """
        self._leave()
        self._send(self._headers(trailers, "END_STREAM"), RstStreamFrame(_STREAM))
        self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self.abort)

    def _begin(self) -> bytes:
        settings = {
            SettingsFrame.MAX_CONCURRENT_STREAMS: 1,
            SettingsFrame.INITIAL_WINDOW_SIZE: self._window,
            SettingsFrame.MAX_FRAME_SIZE: _MAX_FRAME,
        }
        more = WindowUpdateFrame(0, window_increment=self._window - _DEFAULT_WINDOW)
        return SettingsFrame(settings=settings).serialize() + more.serialize()


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
