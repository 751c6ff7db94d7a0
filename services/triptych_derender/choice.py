"""One choice of a reply: token ids in, text and logprob entries out, with stops and hold-back.

Whole answers, streams and the stateless stream all go through ``Choice.feed``, so any cutting into
deltas gives the same text and entries. Rules: docs/logprobs.md, docs/channels.md.
"""

from copy import copy
from dataclasses import dataclass

import msgspec

from triptych.json_bodies import Count
from triptych.reply import ReplySpec
from triptych.response_template import Channel
from triptych.wire import ChoiceDelta
from triptych_derender.lanes import Candidates, Entry, Lane, LaneState
from triptych_derender.pieces import ChannelPiece, EndReason, Piece
from triptych_derender.split_state import CallDelta, SplitRules, SplitState
from triptych_derender.splitter import Splitter
from triptych_derender.stops import StopMatch
from triptych_derender.token_queue import TokenQueue
from triptych_derender.token_table import TokenTable

#: Channels whose text a client reads, and in which stop strings count.
TEXT_CHANNELS: tuple[Channel, ...] = ("content", "reasoning_content")
_ALL_CHANNELS: tuple[Channel, ...] = ("content", "reasoning_content", "tool_calls", "markup")
#: What a client sees who does not want reasoning.
_VISIBLE: tuple[Channel, ...] = ("content", "tool_calls")


class ChoiceState(msgspec.Struct, array_like=True):
    """What a choice is between two deltas; its size does not grow with the output.

    ``lanes``: by channel; content alone where there is no response template, and so no ``split``.
    ``is_cut``: a stop string ended it.
    """

    lanes: dict[Channel, LaneState] = {}
    num_tokens: Count = 0
    is_done: bool = False
    is_cut: bool = False
    split: SplitState | None = None


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the text and entries of a reply are made.

    ``num_candidates`` None keeps all. ``split``: how it is split into channels, if it is.
    ``shows_reasoning``: reasoning and markup go to the client.
    """

    table: TokenTable
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special: bool = True
    num_candidates: int | None = None
    split: SplitRules | None = None
    shows_reasoning: bool = True


def text_rules(spec: ReplySpec, table: TokenTable, split: SplitRules | None = None) -> TextRules:
    return TextRules(
        table=table,
        stops=tuple(spec.stop),
        include_stop=spec.include_stop_str_in_output,
        min_tokens=spec.min_tokens,
        skip_special=spec.skip_special_tokens,
        num_candidates=num_candidates(spec),
        split=split,
        shows_reasoning=spec.include_reasoning,
    )


def num_candidates(spec: ReplySpec) -> int | None:
    """How many candidates a position needs: chat shows k, completions k + 1, sampled included."""
    if not spec.logprobs:
        return 0
    if spec.top_logprobs is None or spec.top_logprobs < 0:
        return None
    return max(1, spec.top_logprobs) if spec.endpoint == "chat" else spec.top_logprobs + 1


def open_choice(state: ChoiceState, rules: TextRules) -> "Choice":
    """The choice that goes on from ``state``, which it changes."""
    if state.split is None:
        return Choice(state, rules)
    return _SplitChoice(state, state.split, rules)


class Choice:
    """One choice of a reply without channels: every token is content."""

    #: Those of whose tokens the client sees logprobs, in their order.
    channels: tuple[Channel, ...] = ("content",)

    def __init__(self, state: ChoiceState, rules: TextRules) -> None:
        self.rules = rules
        self._lanes = {name: self._new_lane(name, each) for name, each in state.lanes.items()}
        self._content = self._lane("content")
        self._finish_reason: EndReason | None = None
        self._stop_reason: int | str | None = None
        self._is_scored = False
        self.num_tokens = state.num_tokens
        self.is_done = state.is_done
        self.is_cut = state.is_cut

    def feed(self, delta: ChoiceDelta) -> Piece:
        """What ``delta`` adds; nothing to a choice that is done."""
        if self.is_done:
            return Piece()
        self._is_scored = delta.logprobs is not None
        candidates = _candidates(delta, self.rules)
        stop_position = _dropped_stop_position(delta, self.rules) if delta.finish_reason else None
        for position, token_id in enumerate(delta.token_ids):
            self.num_tokens += 1
            entry = Entry(token_id, candidates[position])
            self._push_token(entry, is_dropped=position == stop_position)
            if self._finish_reason is not None:
                break
        if delta.finish_reason is not None and self._finish_reason is None:
            self._end_output(delta)
        self.is_done = self._finish_reason is not None
        return self._release()

    def plain_channel(self, text: str) -> Channel | None:
        """Where ``text`` of whole tokens goes, if all of it goes out at once, and nothing else.

        None: only ``feed`` can tell.
        """
        return "content" if not self.is_done and self._content.is_plain(text) else None

    def take_plain(self, channel: Channel, text: str, num_tokens: int) -> None:
        """Note of ``text``, which went out, what ``feed`` would have noted of its tokens."""
        self.num_tokens += num_tokens
        self._lanes[channel].take_plain(text)

    def state(self) -> ChoiceState:
        return ChoiceState(
            lanes={name: lane.state for name, lane in self._lanes.items()},
            num_tokens=self.num_tokens,
            is_done=self.is_done,
            is_cut=self.is_cut,
        )

    def _push_token(self, entry: Entry, *, is_dropped: bool) -> None:
        if is_dropped or self._is_skipped(entry):
            self._content.push_silent(entry)
        else:
            match = self._content.push(entry, may_stop=self.num_tokens > self.rules.min_tokens)
            if match is not None:
                self._cut("content", match)

    def _is_skipped(self, entry: Entry) -> bool:
        return self.rules.skip_special and entry.token_id in self.rules.table.special_ids

    def _end_output(self, delta: ChoiceDelta) -> None:
        """Generate finished the sequence: all held text comes out."""
        for lane in self._lanes.values():
            lane.flush()
        self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason

    def _release(self) -> Piece:
        """The text of this delta, and the entries that travel with it."""
        text, entries = self._content.release(is_done=self.is_done)
        return Piece(
            text=text,
            entries=entries,
            is_scored=self._is_scored,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )

    def _lane(self, channel: Channel) -> Lane:
        lane = self._lanes.get(channel)
        if lane is None:
            lane = self._lanes[channel] = self._new_lane(channel, LaneState())
        return lane

    def _new_lane(self, channel: Channel, state: LaneState) -> Lane:
        stops = self.rules.stops if channel in TEXT_CHANNELS else ()
        return Lane(state, self.rules.table, stops)

    def _cut(self, channel: Channel, match: StopMatch) -> None:
        """``match`` is complete: text ends before it, entries with the token just pushed."""
        for name, lane in self._lanes.items():
            if name == channel:
                lane.cut(match, include_stop=self.rules.include_stop)
            else:
                lane.flush()
        self._finish_reason, self._stop_reason, self.is_cut = "stop", match.stop, True


class _SplitChoice(Choice):
    """A choice with channels; where the splitter places what it decides."""

    def __init__(self, state: ChoiceState, split: SplitState, rules: TextRules) -> None:
        assert rules.split is not None
        super().__init__(state, rules)
        self._queue = TokenQueue(
            rules.table,
            lead=split.lead,
            entries=split.waiting.entries,
            is_skipped=self._is_skipped,
        )
        self._splitter = Splitter(split, rules.split, self._queue, self)
        self._calls: list[CallDelta] = []
        self._token_ids: list[int] = []
        self.channels = _ALL_CHANNELS if rules.shows_reasoning else _VISIBLE

    def plain_channel(self, text: str) -> Channel | None:
        channel = None if self.is_done else self._splitter.plain_channel(text)
        lane = self._lanes.get(channel) if channel in self.channels else None
        return channel if lane is not None and lane.is_plain(text) else None

    def take_plain(self, channel: Channel, text: str, num_tokens: int) -> None:
        super().take_plain(channel, text, num_tokens)
        self._splitter.take_plain(text)

    def state(self) -> ChoiceState:
        split = SplitState() if self.is_done else self._splitter.state()
        return msgspec.structs.replace(super().state(), split=split)

    def place(self, entry: Entry, shares: dict[Channel, bytes], num_later: int) -> None:
        shows_all = self.rules.shows_reasoning
        is_visible = len(shares) == 1 and not shares.keys().isdisjoint(_VISIBLE)
        if self._finish_reason is None and (shows_all or is_visible):
            self._token_ids.append(entry.token_id)
        for channel, raw in shares.items():
            share = entry if len(shares) == 1 else copy(entry)
            share.part = None if len(shares) == 1 else raw
            if self._finish_reason is None:
                self._push_share(channel, share, num_later)

    def add_call(self, delta: CallDelta) -> None:
        if self._finish_reason is None:
            self._calls.append(delta)

    def would_stop(self, channel: Channel, text: str) -> bool:
        return self._lane(channel).would_stop(text)

    def _end_output(self, delta: ChoiceDelta) -> None:
        self._splitter.read(is_end=True, is_cut=delta.finish_reason != "stop")
        if self._finish_reason is None:
            super()._end_output(delta)

    def _release(self) -> Piece:
        shown = self.rules.shows_reasoning
        text, entries = self._release_from("content")
        reasoning, reasoning_entries = self._release_from("reasoning_content")
        others: dict[Channel, list[Entry]] = {
            "reasoning_content": reasoning_entries,
            "tool_calls": self._release_from("tool_calls")[1],
            "markup": self._release_from("markup")[1],
        }
        calls, self._calls = self._calls, []
        token_ids, self._token_ids = self._token_ids, []
        has_called = self._finish_reason == "stop" and self._splitter.num_calls
        return Piece(
            text=text,
            entries=entries,
            is_scored=self._is_scored,
            finish_reason="tool_calls" if has_called else self._finish_reason,
            stop_reason=self._stop_reason,
            channels=ChannelPiece(
                reasoning=reasoning if shown else "",
                calls=calls,
                entries={name: each for name, each in others.items() if name in self.channels},
                token_ids=token_ids,
            ),
        )

    def _push_token(self, entry: Entry, *, is_dropped: bool) -> None:
        self._queue.push(entry, is_dropped=is_dropped)
        self._splitter.read(is_end=False)

    def _release_from(self, channel: Channel) -> tuple[str, list[Entry]]:
        lane = self._lanes.get(channel)
        return lane.release(is_done=self.is_done) if lane else ("", [])

    def _push_share(self, channel: Channel, entry: Entry, num_later: int) -> None:
        """A token or its part, after which ``num_later`` tokens came already."""
        num_tokens = self.num_tokens - num_later
        match = self._lane(channel).push(entry, may_stop=num_tokens > self.rules.min_tokens)
        if match is not None:
            self.num_tokens = num_tokens
            self._cut(channel, match)


def _dropped_stop_position(delta: ChoiceDelta, rules: TextRules) -> int | None:
    """Position of the stop token that the text does not show, if the delta ends with one."""
    is_stop_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
    if not is_stop_token or rules.include_stop or not delta.token_ids:
        return None
    return len(delta.token_ids) - 1


def _candidates(delta: ChoiceDelta, rules: TextRules) -> list[Candidates]:
    """Each position's first candidates."""
    logprobs, most = delta.logprobs, rules.num_candidates
    if logprobs is None or most == 0:
        return [Candidates()] * len(delta.token_ids)
    columns, start = [], 0
    for count in logprobs.counts:
        cut = start + (count if most is None or most > count else most)
        columns.append(Candidates(logprobs.token_ids[start:cut], logprobs.logprobs[start:cut]))
        start += count
    return columns
