"""One channel's text: bytes in, text and entries out, with stop strings and hold-back.

An answer without a response template has one lane, its content.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from triptych.json_bodies import Count, TokenId
from triptych_derender.stops import StopMatch, find_stop, held_back_len
from triptych_derender.text_stream import MAX_HELD_BYTES, flush_bytes, push_bytes
from triptych_derender.token_table import TokenTable

#: Entries without text can wait behind held-back text for ever (a model that repeats a skipped
#: token); beyond this many, and one per character of the longest stop string, the oldest leave.
_MAX_WAITING_ENTRIES = 64

#: Bounds that a state from outside is held to; ``stream_state`` has the others.
_HeldBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_HELD_BYTES)]
_TextEnd = Annotated[int, msgspec.Meta(ge=-1)]


class Candidates:
    """Ids and logprobs of a position, sampled first; ``stream_state`` packs them."""

    __slots__ = ("ids", "logprobs")

    def __init__(self, ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> None:
        self.ids = ids
        self.logprobs = logprobs


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One token of the output (or of an echoed prompt) with its candidates.

    ``offset``: where its text starts in the choice's text, in code points. ``end``: where it ends;
    -1 while its text is held. ``held``: the bytes pending before it, in which it and its
    alternatives are decoded. Without scores there are no candidates. ``part``: the bytes that this
    channel has of a token that spans channels; None = the whole token.
    """

    token_id: TokenId
    candidates: Candidates
    offset: Count = 0
    end: _TextEnd = -1
    held: _HeldBytes = b""
    part: bytes | None = None


class LaneState(msgspec.Struct, array_like=True):
    """What a lane is between two deltas; its size does not grow with the output.

    ``tail``: text that is not sent because it may become a stop string. ``text_len``: all text so
    far in code points, the tail and an echoed prompt included.
    """

    held: _HeldBytes = b""
    tail: str = ""
    text_len: Count = 0
    waiting: list[Entry] = []


class Lane:
    """One channel; it goes on from ``state``, which it changes."""

    def __init__(self, state: LaneState, table: TokenTable, stops: tuple[str, ...]) -> None:
        self.state = state
        self._table = table
        self._stops = stops
        self._texts: list[str] = []

    def push_silent(self, entry: Entry) -> None:
        """A token that the text does not show; it disturbs no pending bytes."""
        state = self.state
        entry.offset = entry.end = state.text_len
        entry.held = state.held
        state.waiting.append(entry)

    def push(self, entry: Entry, *, may_stop: bool = False) -> StopMatch | None:
        """A token, or its part; the stop string that its text completes, if any may count."""
        state = self.state
        entry.offset, entry.held = state.text_len, state.held
        state.waiting.append(entry)
        is_plain = entry.part is None and not state.held
        text = self._table.token_text(entry.token_id) if is_plain else None
        if text is not None:  # all characters were complete, and are
            state.text_len += len(text)
            entry.end = state.text_len
        else:
            raw = self._table.token_bytes(entry.token_id) if entry.part is None else entry.part
            text, state.held = push_bytes(state.held, raw)
            state.text_len += len(text)
            if not state.held:
                self._set_ends()
        if self._stops:
            return self._push_text(text, may_stop=may_stop)
        self._texts.append(text)
        return None

    def is_plain(self, text: str) -> bool:
        """Whether ``text`` of whole tokens goes out at once, and nothing else with it."""
        state, stops = self.state, self._stops
        if state.held or state.tail or state.waiting:
            return False
        return not stops or not (find_stop(text, len(text), stops) or held_back_len(text, stops))

    def take_plain(self, text: str) -> None:
        """Note that ``text`` went out."""
        self.state.text_len += len(text)

    def would_stop(self, text: str) -> bool:
        """Whether ``text`` would complete a stop string here."""
        buffer = self.state.tail + text
        return bool(self._stops) and find_stop(buffer, len(text), self._stops) is not None

    def cut(self, match: StopMatch, *, include_stop: bool) -> None:
        """The text ends before ``match`` of this lane's tail, or after it; entries stay."""
        state = self.state
        end = match.start + len(match.stop) if include_stop else match.start
        state.text_len -= len(state.tail) - end
        state.tail = state.tail[:end]
        for entry in state.waiting:
            entry.offset = min(entry.offset, state.text_len)
        self.finish()

    def flush(self) -> None:
        """The output ends here: pending bytes become text."""
        flushed = flush_bytes(self.state.held)
        self.state.text_len += len(flushed)
        self.state.tail += flushed
        self.finish()

    def finish(self) -> None:
        """All text goes out; what is pending is given up."""
        self._texts.append(self.state.tail)
        self.state.held, self.state.tail = b"", ""

    def release(self, *, is_done: bool) -> tuple[str, list[Entry]]:
        """The text of this delta, and the entries that travel with it; at the end, all."""
        state, texts, waiting = self.state, self._texts, self.state.waiting
        self._texts, state.waiting = [], []
        if not is_done and (state.held or state.tail):  # else all text is sent
            num_released = self._num_released(waiting)
            waiting, state.waiting = waiting[:num_released], waiting[num_released:]
        return "".join(texts), waiting

    def _set_ends(self) -> None:
        """All characters are complete: entries whose text was held end here."""
        for entry in reversed(self.state.waiting):
            if entry.end >= 0 and not entry.held:
                return
            if entry.end < 0:
                entry.end = self.state.text_len

    def _push_text(self, text: str, *, may_stop: bool) -> StopMatch | None:
        state, stops = self.state, self._stops
        buffer = state.tail + text
        match = find_stop(buffer, len(text), stops) if may_stop else None
        if match is not None:
            state.tail = buffer
            return match
        num_sent = len(buffer) - held_back_len(buffer, stops)
        self._texts.append(buffer[:num_sent])
        state.tail = buffer[num_sent:]
        return None

    def _num_released(self, waiting: Sequence[Entry]) -> int:
        """How many of the ``waiting`` entries have all their text sent, or are too many."""
        sent_len = self.state.text_len - len(self.state.tail)
        num_ready = 0
        for entry in waiting:
            if not 0 <= entry.end <= sent_len:
                break
            num_ready += 1
        if num_ready == len(waiting):
            return num_ready
        return max(num_ready, len(waiting) - max_waiting(self._stops))


def max_waiting(stops: tuple[str, ...]) -> int:
    """Most entries that wait for their text."""
    return _MAX_WAITING_ENTRIES + max(map(len, stops), default=0)
