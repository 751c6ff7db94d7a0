"""The server's end of a session, against the gateway's own end and against grpc.aio's client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeAlias

import grpc.aio
import pytest
from google.protobuf.message import Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded

from support.call_metrics import num_ended
from support.echo_sessions import SERVICE, Echo, serving
from support.session_calls import Owner, end_of, until_came
from support.wire import Wire
from triptych.drain import Drain
from triptych.errors import (
    OverloadedError,
    TriptychError,
    UnauthenticatedError,
)
from triptych.hops import NO_HOPS, Hops
from triptych.http2_stream import ONE_STREAM, PREFACE, ServerStream
from triptych.rpc import open_channel
from triptych.rpc_errors import from_rpc_error
from triptych.rpc_messages import framed
from triptych.served_session import ServedSession
from triptych.sessions import SessionKind
from triptych.v1 import render_pb2
from triptych_gateway.session_call import session_door

SECRET = b"0123456789abcdef"
_Call: TypeAlias = "grpc.aio.StreamStreamCall[Message, render_pb2.TextResponse]"
SIZES = [0, 1, 5, 16_379, 16_380, 65_535, 3, 5_000_000, 1, *range(1, 500)]


def asked(body: bytes) -> bytes:
    return render_pb2.TextRequest(body=body).SerializeToString()


def opened(
    target: str, *bodies: bytes, service: str = "RenderService", hops: Hops = NO_HOPS
) -> Owner:
    owner = Owner([asked(body) for body in bodies])
    owner.open(session_door("render", target, service, hops))
    return owner


def answers(owner: Owner) -> list[bytes]:
    return [render_pb2.TextResponse.FromString(each).body for each in owner.received]


@contextlib.asynccontextmanager
async def marking(target: str) -> AsyncIterator[str]:
    """An address whose connections go to ``target`` as if their clients had but one stream.

    grpc's own first settings are replaced by the gateway's.
    """
    host, port = target.split(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        start = await reader.readexactly(len(PREFACE) + 9)
        assert start.startswith(PREFACE)
        await reader.readexactly(int.from_bytes(start[len(PREFACE) : len(PREFACE) + 3], "big"))
        there_writer.write(ONE_STREAM)
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        here, number = server.sockets[0].getsockname()
        yield f"{here}:{number}"


async def test_messages_of_all_sizes_come_back_whole_and_in_order() -> None:
    bodies = [bytes([number % 251 + 1]) * size for number, size in enumerate(SIZES)]
    async with serving() as (_, target):
        owner = opened(target, *bodies)
        await until_came(owner, len(bodies))
        assert answers(owner) == bodies
        assert owner.call is not None
        owner.call.cancel()


async def test_client_of_grpc_is_answered_as_by_grpc() -> None:
    bodies = [bytes([number % 251 + 1]) * size for number, size in enumerate(SIZES)]
    async with (
        serving(Hops(secret=SECRET)) as (_, target),
        marking(target) as marked,
        open_channel(marked, Hops(secret=SECRET)) as channel,
    ):
        call = session_call(channel)
        writing = asyncio.create_task(write_all(call, bodies))
        for body in bodies:
            answer = await call.read()
            assert isinstance(answer, render_pb2.TextResponse)
            assert answer.body == body
        await writing


async def test_error_reaches_a_client_of_grpc_as_itself() -> None:
    async with (
        serving(Hops(secret=SECRET)) as (_, target),
        marking(target) as marked,
        open_channel(marked, Hops(secret=SECRET)) as channel,
    ):
        call = session_call(channel)
        await call.write(render_pb2.TextRequest(body=b"refuse"))
        error = await error_of(call)
    assert isinstance(error, OverloadedError)
    assert (error.message, error.param, error.retry_after_s) == ("énough, 100 %", "body", 3)


async def test_client_of_grpc_without_the_secret_is_refused() -> None:
    async with (
        serving(Hops(secret=SECRET)) as (_, target),
        marking(target) as marked,
        open_channel(marked) as channel,
    ):
        error = await error_of(session_call(channel))
    assert isinstance(error, UnauthenticatedError)


def session_call(channel: grpc.aio.Channel) -> _Call:
    return channel.stream_stream(
        f"/{SERVICE}/Session",
        request_serializer=render_pb2.TextRequest.SerializeToString,
        response_deserializer=render_pb2.TextResponse.FromString,
    )()


async def write_all(call: _Call, bodies: list[bytes]) -> None:
    for body in bodies:
        await call.write(render_pb2.TextRequest(body=body))


async def error_of(call: _Call) -> TriptychError:
    async with asyncio.timeout(20):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
    return from_rpc_error(failed.value, "render")


@pytest.mark.parametrize(
    ("body", "end"),
    [
        (b"refuse", "RESOURCE_EXHAUSTED: énough, 100 %"),
        (b"break", "INTERNAL: internal error; see the server's log"),
        (b"break later", "INTERNAL: internal error; see the server's log"),
    ],
)
async def test_what_breaks_a_session_is_its_status(
    body: bytes, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (rpc, target):
        owner = opened(target, b"work", b"before", body)
        assert await end_of(owner) == f"the session with render broke ({end})"
        async with asyncio.timeout(20):
            await rpc.drain.until_idle()  # the request that ran has ended with its session
    assert ("a fault of ours" in caplog.text) == body.startswith(b"break")


async def test_message_of_another_kind_ends_the_session() -> None:
    async with serving() as (_, target):
        owner = Owner([b"\xff"])
        owner.open(session_door("render", target, "RenderService"))
        assert "INVALID_ARGUMENT: no TextRequest" in await end_of(owner)


async def test_session_that_is_not_served_here_is_refused() -> None:
    async with serving() as (_, target):
        owner = opened(target, b"x", service="OtherService")
        assert await end_of(owner) == (
            "the session with render broke "
            "(UNIMPLEMENTED: there is no session at /triptych.v1.OtherService/Session)"
        )


async def test_secret_is_needed() -> None:
    async with serving(Hops(secret=SECRET)) as (_, target):
        known = opened(target, b"x", hops=Hops(secret=SECRET))
        await until_came(known, 1)
        for wrong in (NO_HOPS, Hops(secret=SECRET[:-1]), Hops(secret=SECRET + b"0")):
            assert "UNAUTHENTICATED" in await end_of(opened(target, b"x", hops=wrong))
        assert known.call is not None
        known.call.cancel()


async def test_caller_that_leaves_ends_its_requests() -> None:
    async with serving() as (rpc, target):
        owner = opened(target, b"work", b"x")
        await until_came(owner, 1)
        assert rpc.drain.num_working == 1
        assert owner.call is not None
        owner.call.cancel()
        async with asyncio.timeout(20):
            await rpc.drain.until_idle()


async def test_requests_are_counted_as_work_of_the_method() -> None:
    async with serving() as (rpc, target):
        owner = opened(target, b"work", b"x")
        await until_came(owner, 1)
        assert owner.call is not None
        owner.call.cancel()
        async with asyncio.timeout(20):
            await rpc.drain.until_idle()
        assert num_ended(rpc.metrics, "Session") == 1


async def test_drain_ends_a_session_when_nothing_runs() -> None:
    async with serving() as (rpc, target):
        idle, busy = opened(target, b"x"), opened(target, b"work", b"x")
        await until_came(idle, 1)
        await until_came(busy, 1)
        await rpc.begin_drain()
        assert await end_of(idle) == "render ended the session"
        assert not busy.end.done()
        assert rpc.drain.cut_off() == 1
        assert await end_of(busy) == "render ended the session"
        assert answers(busy) == [b"x", b"the server is stopping"]


async def test_connection_without_a_head_is_left() -> None:
    def new_stream() -> ServerStream:
        return ServedSession({}, NO_HOPS, Drain(), head_s=0.05).stream

    listener = await asyncio.get_running_loop().create_server(new_stream, "127.0.0.1", 0)
    async with listener, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()


class Pair:
    """A session without a network, and h2's client."""

    def __init__(self, drain: Drain, *, head_s: float = 20, service: str = SERVICE) -> None:
        self.echoes: list[Echo] = []
        self.events: list[Event] = []
        self._wire = Wire()
        kind = SessionKind(SERVICE, render_pb2.TextRequest, partial(self._open, drain))
        self.stream = ServedSession({kind.path: kind}, NO_HOPS, drain, head_s=head_s).stream
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.head = [(":method", "POST"), (":scheme", "http"), (":authority", "a")]
        self.h2.send_headers(1, [*self.head, (":path", f"/{service}/Session")])
        self.stream.connection_made(self._wire)
        self.stream.data_received(self.h2.data_to_send()[len(PREFACE) :])
        self.exchange()

    @property
    def is_aborted(self) -> bool:
        return self._wire.is_aborted

    def send(self, body: bytes) -> None:
        self.h2.send_data(1, framed(asked(body)))
        self.exchange()

    def exchange(self) -> None:
        for part in self._wire.take():
            self.events += self.h2.receive_data(part)
        self.stream.data_received(self.h2.data_to_send())

    def num_received(self) -> int:
        return sum(len(event.data) for event in self.events if isinstance(event, DataReceived))

    def has_end(self) -> bool:
        return any(isinstance(event, StreamEnded) for event in self.events)

    def _open(self, drain: Drain, on_news: Callable[[], None]) -> Echo:
        self.echoes.append(Echo(drain, on_news))
        return self.echoes[-1]


async def turn(pair: Pair) -> None:
    """Let the session send what it can, and deliver that."""
    for _ in range(5):
        await asyncio.sleep(0)
        pair.exchange()


async def test_nothing_is_taken_without_room_and_all_goes_out_before_the_end() -> None:
    drain = Drain()
    pair = Pair(drain)
    for size in (65_000, 9_000, 9_000):
        pair.send(bytes(size))
    await turn(pair)
    assert pair.num_received() == 65_535
    assert len(pair.echoes[0].steps) == 1  # a second one has been begun
    drain.begin()
    await turn(pair)
    assert not pair.has_end()
    for stream_id in (None, 1):
        pair.h2.increment_flow_control_window(2**20, stream_id)
    pair.exchange()
    await turn(pair)
    assert pair.num_received() > 83_000
    assert pair.has_end()
    pair.stream.abort()


async def test_head_in_time_ends_the_waiting_for_it() -> None:
    pair = Pair(Drain(), head_s=0.02)
    await asyncio.sleep(0.1)
    assert not pair.is_aborted
    pair.stream.abort()


async def test_second_head_ends_the_session() -> None:
    pair = Pair(Drain())
    pair.h2.send_headers(1, [("x", "y")], end_stream=True)
    again = pair.h2.data_to_send()
    pair.stream.data_received(again[:4] + b"\4" + again[5:])  # without END_STREAM
    assert pair.is_aborted
    assert len(pair.echoes) == 1


async def test_refusal_is_a_whole_answer() -> None:
    pair = Pair(Drain(), service="other.Service")
    (answer,) = [event for event in pair.events if isinstance(event, ResponseReceived)]
    headers = {str(name): str(value) for name, value in answer.headers}
    assert headers[":status"] == "200"
    assert headers["content-type"] == "application/grpc"
    assert headers["grpc-status"] == "12"
    assert pair.has_end()
    pair.stream.abort()


@pytest.mark.parametrize("sent", [b"x" * 9, bytes((0, 0, 1, 0, 0, 0, 0, 0, 1, 0))])
async def test_what_is_no_call_ends_the_connection(sent: bytes) -> None:
    async with serving() as (_, target):
        host, port = target.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(ONE_STREAM + sent)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
