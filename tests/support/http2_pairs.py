"""An end of a stream of HTTP/2 and the other side of h2, with what is under way cut in pieces."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from support.wire import Wire
from triptych.http2_stream import (
    KEEP_ALIVE,
    PREFACE,
    ClientStream,
    Http2Stream,
    ServerStream,
)

HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x.Service/Session"),
    (":authority", "localhost:1"),
    ("te", "trailers"),
    ("authorization", "Bearer secret"),
]
ANSWER_HEAD = [(":status", "200"), ("content-type", "application/grpc")]


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


class Pair(ABC):
    """An end of ours and h2's other one; what is under way is cut into pieces of ``cuts`` bytes."""

    stream: Http2Stream
    h2: H2Connection

    def __init__(self, cuts: list[int] | None = None) -> None:
        self._cuts = cycle(cuts or [2**20])
        self.owner = Owner()
        self.wire = Wire()
        self.received = b""
        self.unacknowledged = 0
        self._begin()
        self.stream.connection_made(self.wire)
        self.exchange()

    @abstractmethod
    def _begin(self) -> None:
        """Make both ends."""

    def exchange(self) -> None:
        """Deliver until nothing is under way."""
        while True:
            for part in self.wire.take():
                for event in self.h2.receive_data(part):
                    self._note(event)
            if not (sent := self.h2.data_to_send()):
                return
            for piece in pieces(sent, self._cuts):
                self.stream.data_received(piece)

    def send(self, data: bytes, *, padding: int | None) -> None:
        """From h2's end, as our windows allow it."""
        overhead = 0 if padding is None else padding + 1
        while data:
            room = min(self.h2.local_flow_control_window(1), 16_384) - overhead
            assert room > 0, "the stream's window leaks"
            part, data = data[:room], data[room:]
            self.h2.send_data(1, part, pad_length=padding)
            self.exchange()

    def acknowledge(self) -> None:
        if self.unacknowledged:
            self.h2.acknowledge_received_data(self.unacknowledged, 1)
        self.unacknowledged = 0
        self.exchange()

    def open_windows(self) -> None:
        """Give room for everything: acknowledging alone gives it in large parts."""
        for stream_id in (None, 1):
            self.h2.increment_flow_control_window(2**24, stream_id)
        self.exchange()

    def _note(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self.received += event.data
            self.unacknowledged += event.flow_controlled_length


class ClientPair(Pair):
    """Ours asks."""

    def _begin(self) -> None:
        self.stream = ClientStream(HEAD, self.owner, KEEP_ALIVE)
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.h2.initiate_connection()

    def _note(self, event: Event) -> None:
        super()._note(event)
        if isinstance(event, RequestReceived):
            self.h2.send_headers(1, ANSWER_HEAD)


class ServerPair(Pair):
    """Ours is asked, from after the preface on, and begins its answer at once."""

    def __init__(self, cuts: list[int] | None = None) -> None:
        self.answer: list[list[tuple[str, str]]] = []
        self.has_end = self.is_reset = False
        super().__init__(cuts)

    def _begin(self) -> None:
        self.server = ServerStream(self.owner, KEEP_ALIVE)
        self.stream = self.server
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.send_headers(1, HEAD)
        sent = self.h2.data_to_send()
        assert sent.startswith(PREFACE)
        self._early = sent[len(PREFACE) :]

    def exchange(self) -> None:
        early, self._early = self._early, b""
        for piece in pieces(early, self._cuts):
            self.stream.data_received(piece)
        if early:
            self.server.respond(ANSWER_HEAD)
        super().exchange()

    def _note(self, event: Event) -> None:
        super()._note(event)
        if isinstance(event, ResponseReceived | TrailersReceived):
            self.answer.append([(str(name), str(value)) for name, value in event.headers])
        self.has_end = self.has_end or isinstance(event, StreamEnded)
        self.is_reset = self.is_reset or isinstance(event, StreamReset)


def pieces(data: bytes, cuts: Iterator[int]) -> Iterator[bytes]:
    while data:
        size = next(cuts)
        yield data[:size]
        data = data[size:]
