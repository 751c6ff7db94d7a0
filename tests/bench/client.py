"""A lean HTTP/1.1 client: the measured server, not the client, should use the processor."""

import asyncio
import time
from collections.abc import Sequence
from urllib.parse import urlsplit


class Connection:
    """One keep-alive connection."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 200 with a content length.

        Raises:
            RuntimeError: any other status.
        """
        reader, writer = await self._connected()
        writer.write(_request(path, body, ""))
        header = await reader.readuntil(b"\r\n\r\n")
        fields = header.lower().split(b"\r\n")
        length = next(int(f[15:]) for f in fields if f.startswith(b"content-length:"))
        answer = await reader.readexactly(length)
        _check(path, header, answer)
        return answer

    async def get(self, path: str) -> bytes:
        """The body of a 200 that closes the connection."""
        reader, writer = await self._connected()
        writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
        _check(path, await reader.readuntil(b"\r\n\r\n"), b"")
        body = await reader.read()
        self.close()
        return body

    async def event_times(self, path: str, body: bytes) -> list[float]:
        """When each event of a streamed answer came, by ``time.perf_counter``."""
        reader, writer = await self._connected()
        writer.write(_request(path, body, "connection: close\r\n"))
        _check(path, await reader.readuntil(b"\r\n\r\n"), b"")
        times = []
        while line := await reader.readline():
            if line.startswith(b"data: "):
                times.append(time.perf_counter())
        self.close()
        return times

    async def last_bytes(self, path: str, body: bytes) -> bytes:
        """How a streamed answer ended."""
        reader, writer = await self._connected()
        writer.write(_request(path, body, "connection: close\r\n"))
        _check(path, await reader.readuntil(b"\r\n\r\n"), b"")
        end = b""
        while part := await reader.read(2**18):
            end = (end + part)[-64:]
        self.close()
        return end

    async def first_event(self, path: str, body: bytes) -> None:
        """Send a request for a stream and read its first event; the rest is left."""
        reader, writer = await self._connected()
        writer.write(_request(path, body, "connection: close\r\n"))
        _check(path, await reader.readuntil(b"\r\n\r\n"), b"")
        await reader.readuntil(b"\n\n")

    async def rest_of_events(self) -> tuple[list[float], bytes]:
        """When each further event came, by ``time.perf_counter``, and the last one's data."""
        reader, _ = await self._connected()
        times, last = [], b""
        while line := await reader.readline():
            if line.startswith(b"data: "):
                times.append(time.perf_counter())
                last = line.removeprefix(b"data: ").strip()
        self.close()
        return times, last

    def abort(self) -> None:
        """Leave as a client that dies does."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            opened = await asyncio.open_connection(self._host, self._port, limit=2**26)
            self._reader, self._writer = opened
        return self._reader, self._writer


def _request(path: str, body: bytes, headers: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _check(path: str, header: bytes, answer: bytes) -> None:
    status = header.partition(b"\r\n")[0]
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status.decode()} {answer[:300].decode()}")


async def closed_loop(base: str, path: str, bodies: Sequence[bytes], connections: int) -> float:
    """Seconds to send every body, at most ``connections`` at once."""
    waiting = iter(bodies)

    async def work() -> None:
        connection = Connection(base)
        for body in waiting:
            await connection.post(path, body)
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return time.perf_counter() - start
