"""One stream of HTTP/2, either end of it, against the other side of h2."""

import asyncio
from collections.abc import Callable

import pytest
from h2.settings import SettingCodes
from hypothesis import example, given
from hypothesis import strategies as st

from support.http2_pairs import ANSWER_HEAD, HEAD, ClientPair, Owner, Pair, ServerPair
from support.wire import Wire
from triptych.http2_stream import KEEP_ALIVE, ClientStream, KeepAlive, ServerStream

PING_FRAME = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)
PING_ACK = bytes((0, 0, 8, 6, 1, 0, 0, 0, 0)) + bytes(8)
SEND = st.tuples(st.just("send"), st.integers(0, 60_000), st.none() | st.integers(0, 255))
WRITE = st.tuples(st.just("write"), st.integers(0, 200_000))
ACKNOWLEDGE = st.tuples(st.just("acknowledge"))
PING = st.tuples(st.just("ping"))
SETTINGS = st.tuples(st.just("settings"), st.integers(1, 200_000), st.integers(16_384, 100_000))
ACTIONS = st.lists(st.one_of(SEND, WRITE, ACKNOWLEDGE, PING, SETTINGS), max_size=12)
CUTS = st.lists(st.integers(1, 30) | st.integers(1000, 70_000), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", [ClientPair, ServerPair])
@example(actions=[("settings", 200_000, 16_384), ("write", 200_000)], cuts=[2**20])
@example(actions=[("write", 2), ("settings", 1, 16_384), ("write", 0)], cuts=[1])
@example(actions=[("write", 1), ("acknowledge",), ("settings", 1, 16_384), ("write", 1)], cuts=[1])
@given(actions=ACTIONS, cuts=CUTS)
def test_bytes_come_whole_both_ways_in_any_cut_under_any_window(
    kind: type[Pair], actions: list[tuple[str, int, int | None]], cuts: list[int]
) -> None:
    asyncio.run(exchange_all(kind, actions, cuts))


async def exchange_all(
    pair_kind: type[Pair], actions: list[tuple[str, int, int | None]], cuts: list[int]
) -> None:
    pair = pair_kind(cuts)
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
            pair.h2.ping(b"12345678")
        else:
            pair.h2.update_settings(
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
    wanted = ANSWER_HEAD if pair_kind is ClientPair else HEAD
    assert pair.owner.headers == [dict(wanted)]


@pytest.mark.parametrize("kind", [ClientPair, ServerPair])
@pytest.mark.parametrize("padding", [None, 255])
async def test_windows_do_not_leak(kind: type[Pair], padding: int | None) -> None:
    pair = kind()
    for _ in range(500):
        pair.send(b"x" * 8000, padding=padding)
    assert pair.owner.data == b"x" * 4_000_000


async def test_owner_is_told_when_there_is_room_again() -> None:
    pair = ClientPair()
    pair.stream.write(bytes(100_000))
    pair.exchange()
    num_before = pair.owner.num_writable
    assert not pair.stream.is_writable
    pair.acknowledge()
    assert pair.stream.is_writable
    assert pair.owner.num_writable > num_before


async def test_transport_that_is_full_holds_writing_back() -> None:
    pair = ClientPair()
    pair.stream.pause_writing()
    assert not pair.stream.is_writable
    pair.stream.resume_writing()
    assert pair.stream.is_writable


async def test_trailers_in_several_frames_come_before_the_end() -> None:
    pair = ClientPair([7])
    trailers = [("grpc-status", "3"), ("long", "x" * 40_000)]
    pair.h2.send_headers(1, trailers, end_stream=True)
    pair.exchange()
    assert pair.owner.headers[1:] == [dict(trailers)]
    assert len(pair.owner.ends) == 1


async def test_secret_enters_no_table_of_the_connection() -> None:
    wire = Wire()
    ClientStream(HEAD, Owner(), KEEP_ALIVE).connection_made(wire)
    assert b"\x1f\x08" in b"".join(wire.written)  # RFC 7541, 6.2.3: never indexed, static name 23


async def test_answer_ends_with_its_trailers() -> None:
    pair = ServerPair([7])
    pair.stream.write(b"body")
    pair.server.finish([("grpc-status", "3"), ("long", "x" * 9_000)])
    pair.exchange()
    assert pair.received == b"body"
    assert pair.answer == [ANSWER_HEAD, [("grpc-status", "3"), ("long", "x" * 9_000)]]
    assert (pair.has_end, pair.is_reset, pair.owner.ends) == (True, True, [])
    pair.stream.data_received(bytes(100_000))  # what was under way
    await asyncio.sleep(0.01)
    assert not pair.wire.is_aborted  # that could take the trailers back
    pair.stream.connection_lost(None)
    assert pair.wire.is_aborted


async def test_end_without_room_for_the_rest_drops_it() -> None:
    pair = ServerPair()
    pair.stream.write(bytes(200_000))
    pair.exchange()
    pair.server.finish([("grpc-status", "14")])
    pair.exchange()
    assert len(pair.received) == 65_535
    assert pair.has_end
    pair.stream.abort()


async def test_server_takes_one_stream() -> None:
    pair = ServerPair()
    assert pair.h2.remote_settings.max_concurrent_streams == 1
    head = pair.h2.encoder.encode(HEAD)
    second = len(head).to_bytes(3, "big") + bytes((1, 4, 0, 0, 0, 3)) + head
    pair.stream.data_received(second)
    assert pair.owner.ends == ["it broke HTTP/2: there is one stream"]
    assert pair.wire.is_aborted


async def test_client_that_ends_its_side_has_left() -> None:
    pair = ServerPair()
    pair.h2.end_stream(1)
    pair.exchange()
    assert pair.owner.ends == ["it ended the stream"]


async def test_pings_whose_answers_nobody_reads_end_the_stream() -> None:
    pair = ServerPair()
    for _ in range(3):
        pair.stream.pause_writing()
        for _ in range(100):
            pair.h2.ping(b"12345678")
        pair.exchange()
        pair.stream.resume_writing()
    assert not pair.owner.ends
    pair.stream.pause_writing()
    for _ in range(101):
        pair.h2.ping(b"12345678")
    pair.exchange()
    assert pair.owner.ends == ["it broke HTTP/2: it asks and does not read"]


@pytest.mark.parametrize("is_alive", [True, False])
async def test_silent_end_is_asked_for_a_sign_of_life(is_alive: bool) -> None:
    owner, wire = Owner(), Wire()
    stream = ServerStream(owner, KeepAlive(silence_s=0.01, answer_s=0.2))
    stream.connection_made(wire)
    wire.take()
    for _ in range(3 if is_alive else 1):
        await wire.until_used()
        assert wire.take() == [PING_FRAME]
        if is_alive:
            stream.data_received(PING_ACK)
    if not is_alive:
        await wire.until_used()
    assert owner.ends == ([] if is_alive else ["no sign of life"])
    stream.abort()


async def test_end_that_says_something_is_not_asked() -> None:
    wire = Wire()
    stream = ServerStream(Owner(), KeepAlive(silence_s=0.1, answer_s=20))
    start = asyncio.get_running_loop().time()
    stream.connection_made(wire)
    wire.take()
    stream.data_received(PING_ACK)
    await wire.until_used()
    assert wire.take() == [PING_FRAME]
    assert asyncio.get_running_loop().time() - start > 0.19
    stream.abort()


def _reset(pair: Pair) -> None:
    pair.h2.reset_stream(1, error_code=8)


def _refuse(pair: Pair) -> None:
    pair.h2.close_connection(last_stream_id=0)


def _end_without_trailers(pair: Pair) -> None:
    pair.h2.send_data(1, b"last", end_stream=True)


@pytest.mark.parametrize("end", [_reset, _refuse, _end_without_trailers])
async def test_end_is_told_once(end: Callable[[Pair], None]) -> None:
    pair = ClientPair()
    end(pair)
    pair.stream.data_received(pair.h2.data_to_send())
    pair.stream.connection_lost(None)
    assert len(pair.owner.ends) == 1
    assert pair.wire.is_aborted


async def test_going_away_leaves_a_stream_that_was_begun() -> None:
    pair = ClientPair()
    pair.h2.close_connection(last_stream_id=1)
    pair.stream.data_received(pair.h2.data_to_send())
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
async def test_what_is_no_http2_ends_the_stream(sent: bytes) -> None:
    pair = ClientPair()
    pair.stream.data_received(sent)
    assert len(pair.owner.ends) == 1
    assert pair.wire.is_aborted


async def test_headers_without_end_are_bounded() -> None:
    pair = ClientPair()
    part = bytes(16_000)
    for kind in [1, *[9] * 10]:  # HEADERS, then CONTINUATION without END_HEADERS
        pair.stream.data_received(
            len(part).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 1)) + part
        )
    assert pair.owner.ends == ["it broke HTTP/2: its headers are too long"]


async def test_aborted_stream_tells_nothing() -> None:
    pair = ClientPair()
    pair.stream.abort()
    pair.h2.send_data(1, b"late")
    pair.stream.data_received(pair.h2.data_to_send())
    pair.stream.connection_lost(None)
    assert (pair.owner.data, pair.owner.ends) == (b"", [])
