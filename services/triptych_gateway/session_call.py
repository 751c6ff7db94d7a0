"""The call of a session: gRPC on the event loop itself, without grpc.aio's thread and queues.

What is sent and received is gRPC's (its "gRPC over HTTP/2"), so any server of gRPC can be at the
other end.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import grpc

from triptych.errors import TriptychError, UnavailableError
from triptych.hops import NO_HOPS, Hops
from triptych.http2_stream import KEEP_ALIVE, ClientStream, Headers, KeepAlive
from triptych.rpc_messages import MessageReader, framed
from triptych.rpc_options import CONNECT_TIMEOUT_S
from triptych.version import VERSION
from triptych_gateway.addresses import host_and_port


class CallOwner(Protocol):
    """Who is told what comes; never anything after ``ended``."""

    def message_came(self, message: bytes) -> None: ...

    def writable(self) -> None: ...

    def ended(self, error: UnavailableError) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionDoor:
    """Where a panel's sessions are opened.

    ``name``: the panel's, for errors. ``path``: ``/package.Service/Method``.
    """

    name: str
    target: str
    path: str
    hops: Hops = NO_HOPS
    tls: ssl.SSLContext | None = None
    keep_alive: KeepAlive = KEEP_ALIVE

    def open(self, owner: CallOwner) -> "SessionCall":
        return SessionCall(self, owner)

    def head(self) -> Headers:
        return [
            (":method", "POST"),
            (":scheme", "http" if self.tls is None else "https"),
            (":path", self.path),
            (":authority", self.hops.tls_name or self.target),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"triptych/{VERSION}"),
            *self.hops.credentials,
        ]


def session_door(name: str, target: str, service: str, hops: Hops = NO_HOPS) -> SessionDoor:
    """The door of ``service``, one of ours, at ``target`` (host:port)."""
    tls = None if hops.tls is None else hops.tls.client_context()
    return SessionDoor(name, target, f"/triptych.v1.{service}/Session", hops, tls)


class SessionCall:
    """One bidirectional call; it connects by itself, and ends with ``ended`` or ``cancel``."""

    def __init__(self, door: SessionDoor, owner: CallOwner) -> None:
        self._door = door
        self._owner: CallOwner | None = owner
        self._stream = ClientStream(door.head(), self, door.keep_alive)
        self._messages = MessageReader()
        self._loop = asyncio.get_running_loop()
        self._connecting = self._loop.create_task(self._connect())

    @property
    def is_writable(self) -> bool:
        return self._stream.is_writable

    def write(self, message: bytes) -> None:
        """Send ``message``; what the other end has no room for waits."""
        self._stream.write(framed(message))

    def cancel(self) -> None:
        """End the call; its owner hears no more."""
        self._owner = None
        self._connecting.cancel()
        self._stream.abort()

    # what the stream calls

    def headers_came(self, headers: dict[str, str]) -> None:
        status = headers.get("grpc-status")
        if status is not None:
            self._end(_code(status), unquote(headers.get("grpc-message", "")))
        elif (http_status := headers.get(":status", "200")) != "200":
            self._end("UNKNOWN", f"HTTP status {http_status}")

    def data_came(self, data: bytes) -> None:
        try:
            for message in self._messages.feed(data):
                if self._owner is None:
                    return
                self._owner.message_came(message)
        except TriptychError as error:
            self._end(error.grpc_code, error.message)

    def writable(self) -> None:
        if self._owner is not None:
            self._owner.writable()

    def lost(self, why: str) -> None:
        self._end("UNAVAILABLE", why)

    async def _connect(self) -> None:
        host, port = host_and_port(self._door.target)
        name = None if self._door.tls is None else self._door.hops.tls_name or host
        connect = self._loop.create_connection
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connect(
                    lambda: self._stream, host, port, ssl=self._door.tls, server_hostname=name
                )
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            self._end("UNAVAILABLE", str(error))

    def _end(self, code: str, details: str) -> None:
        owner, name = self._owner, self._door.name
        self.cancel()
        if owner is None:
            return
        what = f"the session with {name} broke ({code}: {details})"
        if code == grpc.StatusCode.UNAVAILABLE.name:
            what = f"{name} is not reachable"
        elif code == grpc.StatusCode.OK.name:
            what = f"{name} ended the session"
        owner.ended(UnavailableError(what, retry_after_s=1))


def _code(status: str) -> str:
    """The name of gRPC's status code."""
    names = {str(code.value[0]): code.name for code in grpc.StatusCode}
    return names.get(status, status)
