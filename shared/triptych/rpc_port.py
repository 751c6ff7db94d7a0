"""A gRPC server's port: sessions on connections of their own are served here, all else behind it.

What is behind is grpc.aio, on a Unix socket that only this user can reach. Certificates are checked
here, so that what is handed on is plain.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from triptych.http2_stream import ONE_STREAM, PREFACE, ServerStream
from triptych.listening import bind

if TYPE_CHECKING:
    import socket

#: Connections that the kernel keeps before they are taken.
_BACKLOG = 1024

_log = logging.getLogger(__name__)

NewStream = Callable[[], ServerStream]


class RpcPort:
    """A port that is bound, and from ``start`` on taken connections from."""

    def __init__(self, new_stream: NewStream | None, *, first_bytes_s: float = 20.0) -> None:
        """``new_stream`` gives the end of a session's connection; None: there are no sessions.

        ``first_bytes_s``: until a connection must have said what it is.
        """
        self.new_stream = new_stream
        self.first_bytes_s = first_bytes_s
        self.backend: Backend | None = None
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self.newcomers: set[asyncio.Transport] = set()
        self._transports: set[asyncio.Transport] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def bind(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """The port that was bound.

        Raises:
            SetupError: it is in use or not allowed.
        """
        self._socket, self._tls = bind(host, port), tls
        return cast("int", self._socket.getsockname()[1])

    async def start(self, backend: "Backend") -> None:
        """Take connections; ``backend`` is served already."""
        assert self._socket is not None, "a port is bound before it listens"
        self.backend = backend
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Newcomer(self), sock=self._socket, ssl=self._tls, backlog=_BACKLOG
        )

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    async def close(self, grace_s: float) -> None:
        """End every connection; those whose other end is still being told have ``grace_s``."""
        self.stop_listening()
        for transport in list(self.newcomers):
            transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._is_empty.wait()
        for transport in self._transports:
            transport.abort()

    def keep(self, transport: asyncio.Transport) -> None:
        """Keep this one until it is gone, to end it when the port closes."""
        self._transports.add(transport)
        self._is_empty.clear()

    def forget(self, transport: asyncio.Transport) -> None:
        """It is gone."""
        self._transports.discard(transport)
        if not self._transports:
            self._is_empty.set()


class Backend:
    """The socket of what is behind a port. ``path``: where it is reached."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="triptych-")
        self._file: int | None = None
        self.path = str(Path(self._directory.name) / "grpc")

    def hide(self) -> None:
        """Take its name away, where that can be: a process that is killed leaves no file then."""
        if hasattr(os, "O_PATH"):
            self._file = os.open(self.path, os.O_PATH)
            self.path = f"/proc/self/fd/{self._file}"
            self._directory.cleanup()

    def close(self) -> None:
        self._directory.cleanup()
        if self._file is not None:
            os.close(self._file)
        self._file = None


class _Newcomer(asyncio.Protocol):
    """A connection that has not said yet what it is, or is being handed on."""

    def __init__(self, port: RpcPort) -> None:
        self._port = port
        self._received = b""
        self._handing_on: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port.newcomers.add(self._transport)
        self._port.keep(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._port.first_bytes_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        new_stream = self._port.new_stream
        if new_stream is not None and self._received.startswith(ONE_STREAM):
            self._end()
            self._serve(new_stream())
        elif new_stream is None or not ONE_STREAM.startswith(self._received):
            self._end()
            self._transport.pause_reading()
            self._handing_on = self._handing_on or asyncio.create_task(self._hand_on())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._port.forget(self._transport)

    def _end(self) -> None:
        """It is no newcomer any more."""
        self._timer.cancel()
        self._port.newcomers.discard(self._transport)

    def _serve(self, stream: ServerStream) -> None:
        stream.on_gone = partial(self._port.forget, self._transport)
        self._transport.set_protocol(stream)
        stream.connection_made(self._transport)
        stream.data_received(self._received[len(PREFACE) :])

    async def _hand_on(self) -> None:
        assert self._port.backend is not None, "newcomers come once it has started"
        connect = asyncio.get_running_loop().create_unix_connection
        try:
            other, _ = await connect(lambda: _Relay(self._transport), self._port.backend.path)
        except OSError:
            _log.exception("a connection could not be handed on to grpc.aio")
            self._transport.abort()
            return
        if self._transport.is_closing():
            other.abort()
            return
        gone = partial(self._port.forget, self._transport)
        self._transport.set_protocol(_Relay(other, gone))
        other.write(self._received)
        self._transport.resume_reading()


class _Relay(asyncio.Protocol):
    """One end of a stranger's connection: what comes goes out at the ``other``."""

    def __init__(self, other: asyncio.Transport, on_gone: Callable[[], None] | None = None) -> None:
        self._other = other
        self._on_gone = on_gone

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        self._other.pause_reading()

    def resume_writing(self) -> None:
        self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()
        if self._on_gone is not None:
            self._on_gone()
