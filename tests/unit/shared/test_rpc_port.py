"""Which connections a gRPC port serves itself, and that it hands on the others as they came."""

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triptych.event_loop import run_loop
from triptych.http2_stream import KEEP_ALIVE, ONE_STREAM, PREFACE, ServerStream
from triptych.rpc_port import Backend, RpcPort

#: An ordinary client's first bytes: the preface, and settings without ours.
STRANGER = PREFACE + bytes(3) + b"\4" + bytes(5)


@dataclass(slots=True)
class Owner:
    """Keeps what a session's connection brought."""

    data: bytes = b""
    ends: list[str] = field(default_factory=list)
    has_data: asyncio.Event = field(default_factory=asyncio.Event)

    def headers_came(self, headers: dict[str, str]) -> None: ...

    def data_came(self, data: bytes) -> None:
        self.data += data
        self.has_data.set()

    def writable(self) -> None: ...

    def lost(self, why: str) -> None:
        self.ends.append(why)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@dataclass(slots=True)
class Opened:
    """A port in front of a server that stands for grpc.aio."""

    port: RpcPort
    backend: Backend
    number: int
    owner: Owner


@contextlib.asynccontextmanager
async def opened(
    serve: Serve, *, has_sessions: bool = True, first_bytes_s: float = 20
) -> AsyncIterator[Opened]:
    owner = Owner()
    behind: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind.add(asyncio.ensure_future(serve(reader, writer)))

    new_stream = (lambda: ServerStream(owner, KEEP_ALIVE)) if has_sessions else None
    port = RpcPort(new_stream, first_bytes_s=first_bytes_s)
    number = port.bind("127.0.0.1", 0, None)
    backend = Backend()
    server = await asyncio.start_unix_server(take, backend.path)
    backend.hide()
    await port.start(backend)
    try:
        yield Opened(port, backend, number, owner)
    finally:
        await port.close(0)
        server.close()
        backend.close()
        await asyncio.gather(*behind)  # they end with their connections


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says hello before anything comes, as grpc does, and then sends all back."""
    writer.write(b"hello")
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def connected(
    served: Opened,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.number)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def data_frame(body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((0, 0, 0, 0, 0, 1)) + body


CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(cuts=CUTS)
def test_session_is_served_here_in_any_cut(cuts: list[int]) -> None:
    async def check() -> int:
        async with opened(echo) as served, connected(served) as (_, writer), asyncio.timeout(20):
            await write_in(writer, ONE_STREAM + data_frame(b"body"), cuts)
            await served.owner.has_data.wait()
            assert served.owner.data == b"body"
        return 0

    assert run_loop(check()) == 0


@example(sent=STRANGER, cuts=[1], has_sessions=True)
@example(sent=ONE_STREAM[:-1] + b"\0more", cuts=[7], has_sessions=True)
@example(sent=ONE_STREAM, cuts=[64], has_sessions=False)
@example(sent=b"GET / HTTP/1.1\r\n\r\n", cuts=[1], has_sessions=True)
@given(
    sent=st.binary(min_size=1, max_size=200).filter(lambda sent: not ONE_STREAM.startswith(sent)),
    cuts=CUTS,
    has_sessions=st.booleans(),
)
def test_everything_else_is_handed_on_in_any_cut(
    sent: bytes, cuts: list[int], has_sessions: bool
) -> None:
    async def check() -> int:
        async with (
            opened(echo, has_sessions=has_sessions) as served,
            connected(served) as (reader, writer),
            asyncio.timeout(20),
        ):
            await write_in(writer, sent, cuts)
            assert await reader.readexactly(5 + len(sent)) == b"hello" + sent
        return 0

    assert run_loop(check()) == 0


async def write_in(writer: asyncio.StreamWriter, data: bytes, cuts: list[int]) -> None:
    """Write ``data`` in pieces that reach the other end one by one, most times."""
    sizes = cycle(cuts)
    while data:
        size = next(sizes)
        writer.write(data[:size])
        await writer.drain()
        await asyncio.sleep(0)
        data = data[size:]


async def test_much_goes_both_ways_whole() -> None:
    sent = bytes(range(256)) * 40_000
    async with opened(echo) as served, connected(served) as (reader, writer), asyncio.timeout(60):
        writer.write(STRANGER + sent)
        assert await reader.readexactly(5 + len(STRANGER) + len(sent)) == b"hello" + STRANGER + sent


@pytest.mark.parametrize("slow_end", ["client", "backend"])
async def test_slow_end_holds_the_other_one_back(slow_end: str) -> None:
    """What waits in between is bounded by buffers, not by what is sent."""
    sent = 0
    is_full = asyncio.Event()

    async def send(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(65_536))
                try:
                    await asyncio.wait_for(writer.drain(), 0.5)
                except TimeoutError:
                    break
                sent += 65_536
                assert sent < 2**28
        writer.transport.abort()
        is_full.set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if slow_end == "client":
            await send(writer)
        else:
            await is_full.wait()
            writer.transport.abort()

    async with opened(serve) as served, connected(served) as (_, writer), asyncio.timeout(60):
        writer.write(STRANGER)
        if slow_end == "backend":
            await send(writer)
        await is_full.wait()
        assert sent < 2**26


async def test_end_of_either_side_ends_the_other_after_what_was_sent() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readexactly(len(STRANGER) + 1)).endswith(b"1"):
            writer.write(b"x" * 100_000)
        elif await reader.read() == b"":
            ended.set()
        writer.close()

    async with opened(serve) as served, asyncio.timeout(20):
        async with connected(served) as (reader, writer):
            writer.write(STRANGER + b"1")
            assert await reader.read() == b"x" * 100_000
        async with connected(served) as (_, writer):
            writer.write(STRANGER + b"2")
        await ended.wait()


async def test_connection_that_says_nothing_is_left() -> None:
    async with opened(echo, first_bytes_s=0.05) as served, asyncio.timeout(10):
        for begun in (b"", PREFACE[:5]):
            async with connected(served) as (reader, writer):
                writer.write(begun)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""


async def test_connection_is_left_where_grpc_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(echo) as served, connected(served) as (reader, writer), asyncio.timeout(10):
        served.backend.path += "-gone"
        writer.write(STRANGER)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert "could not be handed on" in caplog.text


async def test_closing_ends_every_connection() -> None:
    async with (
        opened(echo) as served,
        connected(served) as (newcomer, _),
        connected(served) as (stranger, strangers_end),
        connected(served) as (session, sessions_end),
        asyncio.timeout(20),
    ):
        strangers_end.write(STRANGER)
        await stranger.readexactly(5)
        sessions_end.write(ONE_STREAM + data_frame(b"body"))
        await served.owner.has_data.wait()
        await served.port.close(0)
        for reader in (newcomer, stranger, session):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        assert served.owner.ends == ["the connection was closed"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", served.number)


async def test_newcomers_do_not_hold_up_the_end() -> None:
    async with opened(echo) as served, connected(served) as (reader, _), asyncio.timeout(10):
        while not served.port.newcomers:  # noqa: ASYNC110  # it says nothing
            await asyncio.sleep(0)
        await served.port.close(3600)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_stranger_that_leaves_at_once_leaves_nothing_behind() -> None:
    async with asyncio.timeout(20), opened(echo) as served:  # its end waits for what is behind
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", served.number)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(STRANGER)
            await asyncio.sleep(0)
        async with connected(served) as (reader, writer):  # the others have been taken by then
            writer.write(STRANGER)
            assert await reader.readexactly(5) == b"hello"


def test_backend_is_reached_by_its_process_alone() -> None:
    """First in a directory of its own, and then without a name, as files that are unlinked are."""
    backend = Backend()
    path = backend.path
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        backend.hide()
        assert not os.path.exists(os.path.dirname(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(backend.path)
            client.sendall(b"x")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(1) == b"x"
    backend.close()
    backend.close()
