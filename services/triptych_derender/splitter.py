"""Splits an output's bytes into channels by a response template, token by token.

Some bytes wait until it is known whose they are: the end that may begin a tag, white space that may
end a channel's text, and a tool call until it is certain that it is one. They are the front of one
queue of tokens, so channels get their bytes in the order in which they were sampled.
"""

from triptych.response_template import Channel
from triptych_derender.call_reader import CallEvent, CallForm, end_calls, open_reader, read_calls
from triptych_derender.spans import Span
from triptych_derender.split_state import (
    CallDelta,
    CallState,
    Placement,
    QueuedTokens,
    SegmentKind,
    SplitRules,
    SplitState,
    copy_call,
)
from triptych_derender.text_stream import characters, incomplete_tail_len
from triptych_derender.token_queue import TokenQueue

#: Longer white space is text, wherever it stands: what is held back is bounded (bytes).
_MAX_SPACES = 256


class Splitter:
    """One delta's work, on a copy of the state."""

    def __init__(
        self, state: SplitState, rules: SplitRules, queue: TokenQueue, placement: Placement
    ) -> None:
        self._template = rules.template
        self._rules = rules
        self._queue = queue
        self._placement = placement
        self._region = state.region
        self._segments = list(state.segments)
        self._texts = set(state.texts)
        self._call = copy_call(state.call)
        self._num_calls = state.num_calls

    @property
    def num_calls(self) -> int:
        return self._num_calls

    def state(self) -> SplitState:
        return SplitState(
            region=self._region,
            lead=self._queue.lead,
            waiting=QueuedTokens(list(self._queue.entries)),
            num_taken=self._queue.num_taken,
            segments=self._segments,
            texts=sorted(self._texts),
            call=self._call,
            num_calls=self._num_calls,
        )

    def read(self, *, is_end: bool) -> None:
        """Decides what can be decided with the tokens that are in the queue; at the end, all."""
        data = self._queue.data[self._num_kept :]
        num_read = len(data) if is_end else len(data) - incomplete_tail_len(data)
        self._region, spans = self._template.read(
            self._region,
            _decode(data[:num_read]),
            is_end=is_end,
            with_calls=bool(self._rules.tools),
        )
        for span in spans:
            self._span(span)
        if is_end:
            self._settle()
            self._placement.place("content", self._queue, 0)

    @property
    def _num_kept(self) -> int:
        """Bytes of all segments."""
        return sum(length for _, length in self._segments)

    def _span(self, span: Span) -> None:
        channel = self._template.channel(span.field)
        length = len(_encode(span.text))
        if channel == "tool_calls":
            form = self._template.call_form(span.field)
            if span.kind == "open":
                self._open_call(span, length, form)
            elif self._call is not None and span.kind == "text":
                self._call_text(self._call, length, form)
            elif self._call is not None:
                self._close_call(self._call, span, length, form)
        elif span.kind == "text":
            self._text(channel, length, is_stripped=self._template.is_stripped(span.field))
        elif length or channel != "content":
            self._settle()
            self._placement.place("markup", self._queue, length)

    # text

    def _text(self, channel: Channel, length: int, *, is_stripped: bool) -> None:
        """The next bytes are text of ``channel``; what no text shows of them is markup."""
        for is_silent, num_bytes in self._queue.runs(self._num_kept, length):
            if is_silent or channel == "markup":
                self._keep("markup", num_bytes)
            else:
                start = self._num_kept
                text = _decode(self._queue.data[start : start + num_bytes])
                self._shown_text(channel, text, is_stripped=is_stripped)

    def _shown_text(self, channel: Channel, text: str, *, is_stripped: bool) -> None:
        """White space at the start is stripped, and at the end until more text comes."""
        if not is_stripped:
            self._settle(channel)
            self._place_text(channel, text)
            return
        if channel not in self._texts:
            self._settle()
            body = text.lstrip()
            self._placement.place("markup", self._queue, len(_encode(text)) - len(_encode(body)))
            text = body
        body = text.rstrip()
        if body:
            self._settle(channel)
            self._place_text(channel, body)
        if spaces := text[len(body) :]:
            self._wait("space", len(_encode(spaces)))
            if self._num_kept > _MAX_SPACES or self._placement.would_stop(channel, self._spaces()):
                self._settle(channel)

    def _place_text(self, channel: Channel, text: str) -> None:
        self._texts.add(channel)
        self._placement.place(channel, self._queue, len(_encode(text)))

    def _spaces(self) -> str:
        return "".join(_decode(data) for kind, data in self._kept() if kind == "space")

    def _kept(self) -> list[tuple[SegmentKind, bytes]]:
        """The segments with their bytes."""
        data, position, kept = self._queue.data, 0, []
        for kind, length in self._segments:
            kept.append((kind, data[position : position + length]))
            position += length
        return kept

    def _keep(self, kind: SegmentKind, length: int) -> None:
        """Markup behind bytes that wait has to wait with them."""
        if self._segments or kind != "markup":
            self._wait(kind, length)
        else:
            self._placement.place("markup", self._queue, length)

    def _wait(self, kind: SegmentKind, length: int) -> None:
        if self._segments and self._segments[-1][0] == kind:
            length += self._segments.pop()[1]
        self._segments.append((kind, length))

    def _settle(self, spaces: Channel = "markup", calls: Channel = "markup") -> None:
        """Places what waits, in order."""
        segments, self._segments = self._segments, []
        for kind, length in segments:
            channel = spaces if kind == "space" else calls if kind == "call" else "markup"
            self._placement.place(channel, self._queue, length)

    # tool calls

    def _open_call(self, span: Span, length: int, form: CallForm | None) -> None:
        self._wait("tag", length)
        reader = None if form is None else open_reader(form, span.captures)
        self._call = CallState(reader=reader)

    def _call_text(self, call: CallState, length: int, form: CallForm | None) -> None:
        num_dropped = min(length, self._queue.num_dropped(self._num_kept + length))
        length -= num_dropped
        if call.is_broken:
            self._content(length)
        elif call.reader is None or form is None:
            self._wait("call", length)
        else:
            start = self._num_kept
            text = _decode(self._queue.data[start : start + length])
            self._read_calls(call, text, read_calls(call.reader, characters(text), form))
        if num_dropped:
            self._keep("markup", num_dropped)

    def _read_calls(self, call: CallState, text: str, events: list[CallEvent]) -> None:
        """Places the bytes between the events, each as the events before it say."""
        position = 0
        for event in events:
            self._call_bytes(call, len(_encode(text[position : event.position])))
            position = event.position
            self._call_event(call, event)
        rest = len(_encode(text[position:]))
        if call.is_broken:
            self._content(rest)
        else:
            self._call_bytes(call, rest)

    def _call_bytes(self, call: CallState, length: int) -> None:
        if not length:
            return
        if call.is_certain:
            channel: Channel = "markup" if call.is_dropped else "tool_calls"
            self._placement.place(channel, self._queue, length)
        else:
            self._wait("call", length)

    def _call_event(self, call: CallState, event: CallEvent) -> None:
        if event.kind == "object":
            call.is_certain = False
        elif event.kind == "call":
            self._accept(call)
            self._add_call(call, event.text)
        elif event.kind == "arguments" and not call.is_dropped:
            self._placement.add_call(CallDelta(self._num_calls - 1, arguments=event.text))
        elif event.kind == "broken":
            call.is_broken, call.is_certain = True, False
            self._revert()

    def _accept(self, call: CallState) -> None:
        """What waits is a call; a second one that may not be shown is markup."""
        call.is_dropped = self._num_calls > 0 and not self._rules.allows_parallel
        call.is_certain = True
        self._settle(calls="markup" if call.is_dropped else "tool_calls")

    def _add_call(self, call: CallState, name: str) -> None:
        call.num_calls += 1
        if not call.is_dropped:
            self._placement.add_call(CallDelta(self._num_calls, name=name))
            self._num_calls += 1

    def _close_call(self, call: CallState, span: Span, length: int, form: CallForm | None) -> None:
        self._call = None
        if call.reader is None or form is None:
            self._close_whole_call(call, span, length)
            return
        if not call.is_broken and not call.num_calls:
            for event in end_calls(call.reader, form):
                self._call_event(call, event)
        if call.num_calls:
            if not call.is_certain:
                self._revert()
            self._settle()
            self._placement.place("markup", self._queue, length)
        else:
            self._wait("tag", length)
            self._revert()

    def _close_whole_call(self, call: CallState, span: Span, length: int) -> None:
        """A form that is read at its end."""
        text = b"".join(data for kind, data in self._kept() if kind in ("tag", "call"))
        whole = characters(_decode(text) + span.text)
        calls = self._template.parse_calls(span.field, whole, self._rules.tools)
        self._wait("tag", length)
        if not calls:
            self._revert()
            return
        self._accept(call)
        for name, arguments in calls:
            self._add_call(call, name)
            if not call.is_dropped:
                self._placement.add_call(CallDelta(self._num_calls - 1, arguments=arguments))
            call.is_dropped = not self._rules.allows_parallel

    def _revert(self) -> None:
        """What waits is no call but content."""
        length, self._segments = self._num_kept, []
        self._content(length)

    def _content(self, length: int) -> None:
        self._text("content", length, is_stripped=self._template.is_stripped("content"))


def _decode(data: bytes) -> str:
    """As text from which the bytes can be had back: those of no character are surrogates."""
    return data.decode(errors="surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
