"""A lean HTTP/1.1 client: what is measured is the server, so little is done for each byte."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from triptych.errors import SetupError

#: Of a refusal; the rest is not kept.
_MAX_ERROR_BYTES = 64 * 2**10
_OK = 200


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. ``prefix``: its path before ``/v1``."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> "Address":
        """``url`` with or without ``/v1`` at its end.

        Raises:
            SetupError: it is no address of a web server.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        except (ValueError, KeyError) as error:
            raise SetupError(f"--url: {url} is no http or https address") from error
        if not parts.hostname:
            raise SetupError(f"--url: {url} names no host")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"), tls)

    def request(self, method: str, path: str, body: bytes, key: str | None) -> bytes:
        """A whole request; ``key``: its bearer token."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
        if key is not None:
            lines.append(f"authorization: Bearer {key}")
        return "\r\n".join([*lines, "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """One keep-alive connection; a request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._ended: asyncio.Future[None] | None = None
        self._on_part: Callable[[bytes], None] | None = None
        self._refusal = bytearray()
        self.is_open = False

    @classmethod
    async def open(cls, address: Address) -> "Connection":
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            cls, address.host, address.port, ssl=address.tls
        )
        return connection

    async def ask(self, request: bytes, on_part: Callable[[bytes], None]) -> tuple[int, bytes]:
        """The status, and the body of a refusal; ``on_part`` gets the body of a 200 as it comes.

        Raises:
            ConnectionError: the connection ended before the answer did.
        """
        assert self._transport is not None
        self._ended = asyncio.get_running_loop().create_future()
        self._on_part = on_part
        self._refusal.clear()
        self._transport.write(request)
        await self._ended
        return self._parser.get_status_code(), bytes(self._refusal)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by shape alone
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(ConnectionError("not HTTP"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(ConnectionError("closed"))

    def on_body(self, part: bytes) -> None:
        if self._parser.get_status_code() == _OK:
            if self._on_part is not None:
                self._on_part(part)
        elif len(self._refusal) < _MAX_ERROR_BYTES:
            self._refusal += part

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.is_open = False
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        ended, self._ended = self._ended, None
        if ended is None or ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)


class Connections:
    """As many connections as requests run at once; the one that was used last is used next."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []

    async def ask(self, request: bytes, on_part: Callable[[bytes], None]) -> tuple[int, bytes]:
        """See ``Connection.ask``; also raises OSError, where no connection is to be had."""
        while self._idle and not self._idle[-1].is_open:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await Connection.open(self._address)
        try:
            answer = await connection.ask(request, on_part)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
