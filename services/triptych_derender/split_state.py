"""What the splitter carries between deltas, what it is told, and whom it tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import msgspec

from triptych.json_bodies import Count
from triptych.response_template import Channel
from triptych_derender.call_reader import CallForm, CallReader
from triptych_derender.lanes import Entry
from triptych_derender.spans import PlainRegion, RegionState, Span

#: What bytes at the front of the queue are: a channel's, or not decided. ``space`` belongs to its
#: channel's text or is stripped; ``tag`` and ``call`` are markup and a tool call, if it is one.
SegmentKind = Channel | Literal["space", "tag", "call"]
UNDECIDED: frozenset[SegmentKind] = frozenset({"space", "tag", "call"})


class CallState(msgspec.Struct, array_like=True):
    """An open region of tool calls.

    ``reader``: None where calls are read as a whole when the region ends. ``num_calls``: those
    that are certain. ``is_certain``: what comes belongs to one. ``is_broken``: what comes is
    content. ``is_dropped``: it may not be shown (``parallel_tool_calls: false``).
    """

    reader: CallReader | None = None
    num_calls: Count = 0
    is_certain: bool = False
    is_broken: bool = False
    is_dropped: bool = False


class QueuedTokens:
    """Tokens of a queue; ``stream_state`` packs them."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = entries


class SplitState(msgspec.Struct, array_like=True):
    """What is carried from delta to delta.

    ``lead``: bytes of the prompt that belong to the answer and are not decided. ``waiting``: tokens
    that are not decided. ``segments``: what their first bytes are; the rest may begin a tag.
    ``texts``: channels that have text.
    """

    region: RegionState = msgspec.field(default_factory=RegionState)
    lead: bytes = b""
    waiting: QueuedTokens = msgspec.field(default_factory=QueuedTokens)
    segments: list[tuple[SegmentKind, Annotated[int, msgspec.Meta(ge=0)]]] = []
    texts: list[Channel] = []
    call: CallState | None = None
    num_calls: Count = 0


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a call gains: its name, once and first, or some of its arguments' JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


class Placement(Protocol):
    """Where the splitter puts what it decides."""

    def place(self, entry: Entry, shares: dict[Channel, bytes], num_later: int) -> None:
        """A token with the bytes that each channel gets of it; ``num_later`` came after it."""
        ...

    def add_call(self, delta: CallDelta) -> None: ...

    def would_stop(self, channel: Channel, text: str) -> bool:
        """Whether ``text`` would complete a stop string in ``channel``."""
        ...


class Template(Protocol):
    """A response template, as the splitter sees it; ``field`` None is text of no field."""

    def read(
        self, state: RegionState, text: str, *, is_end: bool, with_calls: bool
    ) -> tuple[RegionState, list[Span]]: ...

    def knows(self, field: str | None) -> bool:
        """Whether there is such a field."""
        ...

    def channel(self, field: str | None) -> Channel: ...

    def plain_region(self, field: str | None, *, with_calls: bool) -> PlainRegion | None:
        """What of a region's text needs no reading; None: nothing. ``field`` as in a state."""
        ...

    def is_stripped(self, field: str | None) -> bool: ...

    def call_form(self, field: str | None) -> CallForm | None:
        """How the field's calls can be read as they come; None if only as a whole."""
        ...

    def parse_calls(
        self, field: str | None, text: str, tools: Sequence[object]
    ) -> list[tuple[str, str]]:
        """Names and JSON arguments of a whole region, its delimiters included; none if broken."""
        ...

    def after_anchor(self, prompt: str) -> str | None:
        """What a prompt already says of the answer; None if its beginning is not in ``prompt``."""
        ...


@dataclass(frozen=True, slots=True)
class SplitRules:
    """How one request's answers are split. Without ``tools`` no text is a tool call."""

    template: Template
    tools: Sequence[object] = ()
    allows_parallel: bool = True


_call_decoder = msgspec.msgpack.Decoder(CallState)


def copy_call(call: CallState | None) -> CallState | None:
    """A deep copy."""
    return None if call is None else _call_decoder.decode(msgspec.msgpack.encode(call))
