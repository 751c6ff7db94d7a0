"""Splits an output's bytes into channels by a response template, token by token.

Some bytes wait until it is known whose they are: the end that may begin a tag, white space that may
end a channel's text, and a tool call until it is certain that it is one. Tokens wait in one queue
until all their bytes are decided, so every channel gets a token once, and in the sampled order.
"""

from triptych.response_template import Channel
from triptych_derender.call_reader import CallEvent, CallForm, end_calls, open_reader, read_calls
from triptych_derender.spans import Span
from triptych_derender.split_state import (
    UNDECIDED,
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

#: Longer white space is text, wherever it stands: what is held back is bounded (code points).
_MAX_SPACES = 256


class Splitter:
    """Goes on from ``state``, which it leaves as it is."""

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
        self._is_cut = False

    @property
    def num_calls(self) -> int:
        return self._num_calls

    def state(self) -> SplitState:
        return SplitState(
            region=self._region,
            lead=self._queue.lead,
            waiting=QueuedTokens(list(self._queue.entries)),
            segments=self._segments,
            texts=sorted(self._texts),
            call=self._call,
            num_calls=self._num_calls,
        )

    def plain_channel(self, text: str) -> Channel | None:
        """The channel of ``text`` of whole tokens, if that is certain at once of all of it."""
        field, with_calls = self._region.field, bool(self._rules.tools)
        plain = self._template.plain_region(field, with_calls=with_calls)
        is_between = not (self._queue.data or self._queue.entries or self._segments)
        if plain is None or not (is_between and plain.channel in self._texts):
            return None
        ends_in_space = plain.is_stripped and text[-1].isspace()
        return plain.channel if plain.tag_starts.isdisjoint(text) and not ends_in_space else None

    def take_plain(self, text: str) -> None:
        """Note that ``text`` went out."""
        self._region = self._region.after(text)

    def read(self, *, is_end: bool, is_cut: bool = False) -> None:
        """Decides what can be decided with the tokens that are in the queue; at the end, all.

        ``is_cut``: the model did not end there by itself.
        """
        self._is_cut = is_cut
        data = self._queue.data[self._num_read :]
        num_bytes = len(data) if is_end else len(data) - incomplete_tail_len(data)
        self._region, spans = self._template.read(
            self._region,
            _decode(data[:num_bytes]),
            is_end=is_end,
            with_calls=bool(self._rules.tools),
        )
        for span in spans:
            self._span(span)
        if is_end:
            self._settle()
        self._place_tokens()

    @property
    def _num_read(self) -> int:
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
            self._add("markup", length)

    # segments: what the bytes at the front of the queue are

    def _add(self, kind: SegmentKind, length: int) -> None:
        if self._segments and self._segments[-1][0] == kind:
            length += self._segments.pop()[1]
        if length:
            self._segments.append((kind, length))

    def _settle(self, spaces: Channel = "markup", calls: Channel = "markup") -> None:
        """Decides what waits."""
        final = {"space": spaces, "tag": "markup", "call": calls}
        segments, self._segments = self._segments, []
        for kind, length in segments:
            self._add(final.get(kind, kind), length)

    def _place_tokens(self) -> None:
        """Tokens of which every byte is decided leave the queue."""
        while self._queue.lead and self._segments and self._segments[0][0] not in UNDECIDED:
            self._use(self._queue.drop_lead(self._segments[0][1]))
        while not self._queue.lead and (length := self._queue.first_length()) is not None:
            shares = self._shares(length)
            if shares is None:
                return
            if not shares:  # a token without bytes
                field = self._region.field
                shares = {self._template.channel(field) if field else "content": b""}
            self._use(length)
            self._placement.place(self._queue.pop(), shares, len(self._queue.entries))

    def _shares(self, length: int) -> dict[Channel, bytes] | None:
        """What each channel gets of the next ``length`` bytes; None while some are undecided."""
        shares: dict[Channel, bytes] = {}
        position = 0
        for kind, num_bytes in self._segments:
            if position == length:
                break
            if kind == "space" or kind == "tag" or kind == "call":
                return None
            end = min(position + num_bytes, length)
            shares[kind] = shares.get(kind, b"") + self._queue.data[position:end]
            position = end
        return shares if position == length else None

    def _use(self, length: int) -> None:
        """The first ``length`` bytes are gone."""
        while length:
            kind, num_bytes = self._segments[0]
            used = min(length, num_bytes)
            self._segments[:1] = [(kind, num_bytes - used)] if used < num_bytes else []
            length -= used

    # text

    def _text(self, channel: Channel, length: int, *, is_stripped: bool) -> None:
        """The next bytes are text of ``channel``; what no text shows of them is markup."""
        for is_silent, num_bytes in self._queue.runs(self._num_read, length):
            if is_silent or channel == "markup":
                self._add("markup", num_bytes)
            else:
                start = self._num_read
                text = _decode(self._queue.data[start : start + num_bytes])
                self._shown_text(channel, text, is_stripped=is_stripped)

    def _shown_text(self, channel: Channel, text: str, *, is_stripped: bool) -> None:
        """White space at the start is stripped, and at the end until more text comes."""
        if is_stripped and channel not in self._texts:
            body = text.lstrip()
            self._add("markup", len(_encode(text)) - len(_encode(body)))
            text = body
        body = text.rstrip() if is_stripped else text
        if body:
            self._settle(channel)
            self._texts.add(channel)
            self._add(channel, len(_encode(body)))
        if spaces := text[len(body) :]:
            self._add("space", len(_encode(spaces)))
            is_long = len(self._text_of("space")) > _MAX_SPACES
            if is_long or self._placement.would_stop(channel, self._text_of(channel, "space")):
                self._settle(channel)

    def _text_of(self, *kinds: SegmentKind) -> str:
        """The text of some segments."""
        position, parts = 0, []
        for kind, length in self._segments:
            if kind in kinds:
                parts.append(self._queue.data[position : position + length])
            position += length
        return _decode(b"".join(parts))

    # tool calls

    def _open_call(self, span: Span, length: int, form: CallForm | None) -> None:
        self._add("tag", length)
        reader = None if form is None else open_reader(form, span.captures)
        self._call = CallState(reader=reader)

    def _call_text(self, call: CallState, length: int, form: CallForm | None) -> None:
        num_dropped = min(length, self._queue.num_dropped(self._num_read + length))
        length -= num_dropped
        if call.is_broken:
            self._content(length)
        elif call.reader is None or form is None:
            self._add("call", length)
        else:
            start = self._num_read
            text = _decode(self._queue.data[start : start + length])
            self._read_calls(call, text, read_calls(call.reader, characters(text), form))
        self._add("markup", num_dropped)

    def _read_calls(self, call: CallState, text: str, events: list[CallEvent]) -> None:
        """The bytes between the events are what the events before them say."""
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
        if call.is_certain:
            self._add("markup" if call.is_dropped else "tool_calls", length)
        else:
            self._add("call", length)

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
        is_ended = bool(span.text) or not self._is_cut
        if is_ended and not call.is_broken and not call.num_calls:
            for event in end_calls(call.reader, form):
                self._call_event(call, event)
        if call.num_calls:
            if not call.is_certain:
                self._revert()
            self._settle()
            self._add("markup", length)
        else:
            self._add("tag", length)
            self._revert()

    def _close_whole_call(self, call: CallState, span: Span, length: int) -> None:
        """A form that is read at its end."""
        whole = characters(self._text_of("tag", "call") + span.text)
        calls = self._template.parse_calls(span.field, whole, self._rules.tools)
        self._add("tag", length)
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
        kinds = [kind for kind, _ in self._segments]
        first = next((n for n, kind in enumerate(kinds) if kind in UNDECIDED), len(kinds))
        length = sum(num_bytes for _, num_bytes in self._segments[first:])
        del self._segments[first:]
        self._content(length)

    def _content(self, length: int) -> None:
        self._text("content", length, is_stripped=self._template.is_stripped("content"))


def _decode(data: bytes) -> str:
    """As text from which the bytes can be had back: those of no character are surrogates."""
    return data.decode(errors="surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
