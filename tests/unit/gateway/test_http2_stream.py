"""One stream of HTTP/2 against the server's side of h2."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived
from h2.settings import SettingCodes
from hypothesis import example, given
from hypothesis import strategies as st

from triptych_gateway.http2_stream import Http2Stream

HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x.Service/Session"),
    (":authority", "localhost:1"),
    ("te", "trailers"),
    ("authorization", "Bearer secret"),
]


class Wire(asyncio.Transport):
    """Keeps what is written, each part by itself: h2 looks at new settings once a part."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def take(self) -> list[bytes]:
        written, self.written = self.written, []
        return written


@dataclass(slots=True)
class Owner:
    """Keeps what it is told."""

    headers: list[dict[str, str]] = field(default_factory=list)
    data: bytes = b""
    ends: list[str] = field(default_factory=list)
    num_writable: int = 0

    def headers_came(self, headers: dict[str, str]) -> None:
        self.headers.append(headers)

    def data_came(self, data: bytes) -> None:
        assert not self.ends
        self.data += data

    def writable(self) -> None:
        self.num_writable += 1

    def lost(self, why: str) -> None:
        self.ends.append(why)


class Pair:
    """A stream and a server, and what is under way between them in pieces of ``cuts`` bytes."""

    def __init__(self, cuts: list[int] | None = None) -> None:
        self._cuts = cycle(cuts or [2**20])
        self.owner = Owner()
        self.wire = Wire()
        self.stream = Http2Stream(HEAD, self.owner)
        self.server = H2Connection(H2Configuration(client_side=False))
        self.server.initiate_connection()
        self.received = b""
        self.unacknowledged = 0
        self.stream.connection_made(self.wire)
        self.exchange()

    def exchange(self) -> None:
        """Deliver until nothing is under way."""
        while True:
            for part in self.wire.take():
                for event in self.server.receive_data(part):
                    self._note(event)
            if not (sent := self.server.data_to_send()):
                return
            for piece in pieces(sent, self._cuts):
                self.stream.data_received(piece)

    def send(self, data: bytes, *, padding: int | None) -> None:
        """From the server, as the stream's windows allow it."""
        overhead = 0 if padding is None else padding + 1
        while data:
            room = min(self.server.local_flow_control_window(1), 16_384) - overhead
            assert room > 0, "the stream's window leaks"
            part, data = data[:room], data[room:]
            self.server.send_data(1, part, pad_length=padding)
            self.exchange()

    def acknowledge(self) -> None:
        if self.unacknowledged:
            self.server.acknowledge_received_data(self.unacknowledged, 1)
        self.unacknowledged = 0
        self.exchange()

    def open_windows(self) -> None:
        """Give room for everything: acknowledging alone gives it in large parts."""
        for stream_id in (None, 1):
            self.server.increment_flow_control_window(2**24, stream_id)
        self.exchange()

    def _note(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self.server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        elif isinstance(event, DataReceived):
            self.received += event.data
            self.unacknowledged += event.flow_controlled_length


def pieces(data: bytes, cuts: Iterator[int]) -> Iterator[bytes]:
    while data:
        size = next(cuts)
        yield data[:size]
        data = data[size:]


SEND = st.tuples(st.just("send"), st.integers(0, 60_000), st.none() | st.integers(0, 255))
WRITE = st.tuples(st.just("write"), st.integers(0, 200_000))
ACKNOWLEDGE = st.tuples(st.just("acknowledge"))
PING = st.tuples(st.just("ping"))
SETTINGS = st.tuples(st.just("settings"), st.integers(1, 200_000), st.integers(16_384, 100_000))
ACTIONS = st.lists(st.one_of(SEND, WRITE, ACKNOWLEDGE, PING, SETTINGS), max_size=12)
CUTS = st.lists(st.integers(1, 30) | st.integers(1000, 70_000), min_size=1, max_size=8)


@example(actions=[("write", 1), ("acknowledge",), ("settings", 1, 16_384), ("write", 1)], cuts=[1])
@given(actions=ACTIONS, cuts=CUTS)
def test_bytes_come_whole_both_ways_in_any_cut_under_any_window(
    actions: list[tuple[str, int, int | None]], cuts: list[int]
) -> None:
    pair = Pair(cuts)
    sent = written = b""
    for number, (kind, *values) in enumerate(actions):
        fill = bytes([number])
        if kind == "send":
            sent += fill * (values[0] or 0)
            pair.send(fill * (values[0] or 0), padding=values[1])
        elif kind == "write":
            written += fill * (values[0] or 0)
            pair.stream.write(fill * (values[0] or 0))
        elif kind == "acknowledge":
            pair.acknowledge()
        elif kind == "ping":
            pair.server.ping(b"12345678")
        else:
            pair.server.update_settings(
                {
                    SettingCodes.INITIAL_WINDOW_SIZE: values[0] or 1,
                    SettingCodes.MAX_FRAME_SIZE: values[1] or 16_384,
                }
            )
        pair.exchange()
        assert pair.stream.is_writable == (len(pair.received) == len(written))
    pair.open_windows()
    assert pair.owner.data == sent
    assert pair.received == written
    assert not pair.owner.ends
    assert [each[":status"] for each in pair.owner.headers] == ["200"]


@pytest.mark.parametrize("padding", [None, 255])
def test_windows_do_not_leak(padding: int | None) -> None:
    pair = Pair()
    for _ in range(500):
        pair.send(b"x" * 400, padding=padding)
    assert pair.owner.data == b"x" * 200_000


def test_owner_is_told_when_there_is_room_again() -> None:
    pair = Pair()
    pair.stream.write(bytes(100_000))
    pair.exchange()
    num_before = pair.owner.num_writable
    assert not pair.stream.is_writable
    pair.acknowledge()
    assert pair.stream.is_writable
    assert pair.owner.num_writable > num_before


def test_transport_that_is_full_holds_writing_back() -> None:
    pair = Pair()
    pair.stream.pause_writing()
    assert not pair.stream.is_writable
    pair.stream.resume_writing()
    assert pair.stream.is_writable


def test_trailers_in_several_frames_come_before_the_end() -> None:
    pair = Pair([7])
    trailers = [("grpc-status", "3"), ("long", "x" * 40_000)]
    pair.server.send_headers(1, trailers, end_stream=True)
    pair.exchange()
    assert pair.owner.headers[1:] == [dict(trailers)]
    assert len(pair.owner.ends) == 1


def test_secret_enters_no_table_of_the_connection() -> None:
    wire = Wire()
    Http2Stream(HEAD, Owner()).connection_made(wire)
    assert b"\x1f\x08" in b"".join(wire.written)  # RFC 7541, 6.2.3: never indexed, static name 23


def _reset(pair: Pair) -> None:
    pair.server.reset_stream(1, error_code=8)


def _refuse(pair: Pair) -> None:
    pair.server.close_connection(last_stream_id=0)


def _end_without_trailers(pair: Pair) -> None:
    pair.server.send_data(1, b"last", end_stream=True)


@pytest.mark.parametrize("end", [_reset, _refuse, _end_without_trailers])
def test_end_is_told_once(end: Callable[[Pair], None]) -> None:
    pair = Pair()
    end(pair)
    pair.stream.data_received(pair.server.data_to_send())
    pair.stream.connection_lost(None)
    assert len(pair.owner.ends) == 1
    assert pair.wire.is_aborted


def test_going_away_leaves_a_stream_that_was_begun() -> None:
    pair = Pair()
    pair.server.close_connection(last_stream_id=1)
    pair.stream.data_received(pair.server.data_to_send())
    assert not pair.owner.ends


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (70_000).to_bytes(3, "big") + bytes(6) + bytes(70_000),  # a frame that is too long
        bytes((0, 0, 1, 3, 0, 0, 0, 0, 1, 0)),  # RST_STREAM with one byte
        bytes((0, 0, 1, 1, 4, 0, 0, 0, 1, 0xFF)),  # a header that is not there
    ],
)
def test_what_is_no_http2_ends_the_stream(sent: bytes) -> None:
    pair = Pair()
    pair.stream.data_received(sent)
    assert len(pair.owner.ends) == 1
    assert pair.wire.is_aborted


def test_headers_without_end_are_bounded() -> None:
    pair = Pair()
    part = bytes(16_000)
    for kind in [1, *[9] * 10]:  # HEADERS, then CONTINUATION without END_HEADERS
        pair.stream.data_received(
            len(part).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 1)) + part
        )
    assert pair.owner.ends == ["it broke HTTP/2: its headers are too long"]


def test_aborted_stream_tells_nothing() -> None:
    pair = Pair()
    pair.stream.abort()
    pair.server.send_data(1, b"late")
    pair.stream.data_received(pair.server.data_to_send())
    pair.stream.connection_lost(None)
    assert (pair.owner.data, pair.owner.ends) == (b"", [])
