"""One choice of a reply: token ids in, text and logprob entries out, with stops and hold-back.

``advance`` is the one function that whole answers, streams and the stateless stream go through, so
any cutting into deltas gives the same text and entries. Rules: docs/logprobs.md.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

import msgspec

from triptych.json_bodies import Count, TokenId
from triptych.logprobs import Logprobs
from triptych.reply import ReplySpec
from triptych.wire import ChoiceDelta, FinishReason
from triptych_derender.stops import find_stop, held_back_len
from triptych_derender.text_stream import MAX_HELD_BYTES, flush_bytes, push_bytes
from triptych_derender.token_table import TokenTable

#: Entries without text can wait behind held-back text for ever (a model that repeats a skipped
#: token); beyond this many, and one per character of the longest stop string, the oldest leave.
_MAX_WAITING_ENTRIES = 64

#: Bounds that a state from outside is held to; ``stream_state`` has the others.
_HeldBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_HELD_BYTES)]
_TextEnd = Annotated[int, msgspec.Meta(ge=-1)]


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One token of the output (or of an echoed prompt) with its candidates, sampled first.

    ``offset``: where its text starts in the choice's text, in code points. ``end``: where it ends;
    -1 while its text is held. ``held``: the bytes pending before it, in which it and its
    alternatives are decoded. Without scores there are no candidates.
    """

    token_id: TokenId
    offset: Count
    end: _TextEnd
    held: _HeldBytes
    candidate_ids: list[TokenId]
    logprobs: list[float]


class ChoiceState(msgspec.Struct, array_like=True):
    """What is carried from delta to delta; its size does not grow with the output.

    ``tail``: text that is not sent because it may become a stop string. ``text_len``: all text so
    far in code points, the tail and an echoed prompt included. ``is_cut``: a stop string ended it.
    """

    held: _HeldBytes = b""
    tail: str = ""
    text_len: Count = 0
    num_tokens: Count = 0
    waiting: list[Entry] = []
    is_done: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delta adds to a choice.

    ``entries``: the tokens whose text is in ``text``. ``is_scored``: generate sent logprobs.
    """

    text: str = ""
    entries: Sequence[Entry] = ()
    is_scored: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.entries or self.finish_reason)

    def token_ids(self) -> list[int]:
        return [entry.token_id for entry in self.entries]

    def then(self, later: "Piece") -> "Piece":
        """This piece and a later one of the same choice as one."""
        return Piece(
            text=self.text + later.text,
            entries=[*self.entries, *later.entries],
            is_scored=self.is_scored or later.is_scored,
            finish_reason=later.finish_reason,
            stop_reason=later.stop_reason,
        )


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the text and entries of a reply are made. ``num_candidates`` None keeps all."""

    table: TokenTable
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special: bool = True
    num_candidates: int | None = None

    @property
    def max_waiting(self) -> int:
        """Most entries that wait for their text."""
        return _MAX_WAITING_ENTRIES + max(map(len, self.stops), default=0)


def text_rules(spec: ReplySpec, table: TokenTable) -> TextRules:
    return TextRules(
        table=table,
        stops=tuple(spec.stop),
        include_stop=spec.include_stop_str_in_output,
        min_tokens=spec.min_tokens,
        skip_special=spec.skip_special_tokens,
        num_candidates=num_candidates(spec),
    )


def num_candidates(spec: ReplySpec) -> int | None:
    """How many candidates a position needs: chat shows k, completions k + 1, sampled included."""
    if not spec.logprobs:
        return 0
    if spec.top_logprobs is None or spec.top_logprobs < 0:
        return None
    return max(1, spec.top_logprobs) if spec.endpoint == "chat" else spec.top_logprobs + 1


def advance(state: ChoiceState, delta: ChoiceDelta, rules: TextRules) -> tuple[ChoiceState, Piece]:
    """The state after ``delta``, and what the delta adds. A choice that is done ignores it."""
    if state.is_done:
        return state, Piece()
    run = _Run(state, rules)
    run.push_tokens(delta)
    if delta.finish_reason is not None and run.finish_reason is None:
        run.end_output(delta)
    return run.state, run.release()


class _Run:
    """One call of ``advance``: works on its own copy of the state."""

    def __init__(self, state: ChoiceState, rules: TextRules) -> None:
        self.state = msgspec.structs.replace(state, waiting=list(map(copy, state.waiting)))
        self._rules = rules
        self._texts: list[str] = []
        self._is_scored = False
        self.finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None

    def push_tokens(self, delta: ChoiceDelta) -> None:
        stop_position = _dropped_stop_position(delta, self._rules)
        self._is_scored = delta.logprobs is not None
        columns = _candidate_columns(delta.logprobs, self._rules, len(delta.token_ids))
        for position, token_id in enumerate(delta.token_ids):
            ids, logprobs = columns[position]
            self._push_token(token_id, ids, logprobs, is_dropped=position == stop_position)
            if self.finish_reason is not None:
                return

    def end_output(self, delta: ChoiceDelta) -> None:
        """Generate finished the sequence: all held text comes out."""
        flushed = flush_bytes(self.state.held)
        self.state.text_len += len(flushed)
        self._texts += (self.state.tail, flushed)
        self._finish(delta.finish_reason, delta.stop_reason)

    def release(self) -> Piece:
        """The text of this call, and the entries that travel with it."""
        num_released = self._num_released()
        waiting = self.state.waiting
        self.state.waiting = waiting[num_released:]
        return Piece(
            text="".join(self._texts),
            entries=waiting[:num_released],
            is_scored=self._is_scored,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )

    def _push_token(
        self, token_id: int, ids: list[int], logprobs: list[float], *, is_dropped: bool
    ) -> None:
        state, rules = self.state, self._rules
        entry = Entry(token_id, state.text_len, -1, state.held, ids, logprobs)
        state.waiting.append(entry)
        state.num_tokens += 1
        if is_dropped or (rules.skip_special and token_id in rules.table.special_ids):
            entry.end = state.text_len
            return
        text = rules.table.token_text(token_id) if not state.held else None
        if text is None:
            text, state.held = push_bytes(state.held, rules.table.token_bytes(token_id))
        state.text_len += len(text)
        if not state.held:
            self._set_ends()
        self._push_text(text)

    def _set_ends(self) -> None:
        """All characters are complete: entries whose text was held end here."""
        for entry in reversed(self.state.waiting):
            if entry.end >= 0 and not entry.held:
                return
            if entry.end < 0:
                entry.end = self.state.text_len

    def _push_text(self, text: str) -> None:
        state, stops = self.state, self._rules.stops
        if not stops:
            self._texts.append(text)
            return
        buffer = state.tail + text
        if state.num_tokens > self._rules.min_tokens:
            match = find_stop(buffer, len(text), stops)
            if match is not None:
                self._cut(buffer, match.start, match.stop)
                return
        num_sent = len(buffer) - held_back_len(buffer, stops)
        self._texts.append(buffer[:num_sent])
        state.tail = buffer[num_sent:]

    def _cut(self, buffer: str, start: int, stop: str) -> None:
        """``stop`` is complete: text ends before it, entries with the token just pushed."""
        end = start + len(stop) if self._rules.include_stop else start
        self._texts.append(buffer[:end])
        self.state.text_len -= len(buffer) - end
        for entry in self.state.waiting:
            entry.offset = min(entry.offset, self.state.text_len)
        self.state.is_cut = True
        self._finish("stop", stop)

    def _finish(self, finish_reason: FinishReason | None, stop_reason: int | str | None) -> None:
        self.finish_reason, self._stop_reason = finish_reason, stop_reason
        self.state.held, self.state.tail = b"", ""
        self.state.is_done = True

    def _num_released(self) -> int:
        """How many waiting entries have all their text sent; at the end, all."""
        waiting = self.state.waiting
        if self.state.is_done:
            return len(waiting)
        sent_len = self.state.text_len - len(self.state.tail)
        num_ready = 0
        for entry in waiting:
            if not 0 <= entry.end <= sent_len:
                break
            num_ready += 1
        return max(num_ready, len(waiting) - self._rules.max_waiting)


def _dropped_stop_position(delta: ChoiceDelta, rules: TextRules) -> int | None:
    """Position of the stop token that the text does not show, if the delta ends with one."""
    is_stop_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
    if not is_stop_token or rules.include_stop or not delta.token_ids:
        return None
    return len(delta.token_ids) - 1


def _candidate_columns(
    logprobs: Logprobs | None, rules: TextRules, num_positions: int
) -> list[tuple[list[int], list[float]]]:
    """Ids and values of each position's first candidates."""
    if logprobs is None or rules.num_candidates == 0:
        return [([], [])] * num_positions
    most = rules.num_candidates
    ends = accumulate(logprobs.counts)
    columns = []
    for count, end in zip(logprobs.counts, ends, strict=True):
        start = end - count
        cut = end if most is None else min(end, start + most)
        columns.append((logprobs.token_ids[start:cut], logprobs.logprobs[start:cut]))
    return columns
