"""One prompt of a reply: its echo, and its choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from triptych.logprobs import Logprobs
from triptych.wire import ChoiceDelta, GenerateDelta
from triptych_derender.choice import Choice, ChoiceState, TextRules, open_choice
from triptych_derender.lanes import Entry, LaneState
from triptych_derender.pieces import Piece
from triptych_derender.split_state import SplitState
from triptych_derender.token_table import TokenTable


class PromptState(msgspec.Struct, array_like=True):
    """The choices of one prompt by index; empty before the first delta."""

    choices: dict[int, ChoiceState] = {}


class ChoiceUpdate(msgspec.Struct, frozen=True):
    """What a delta brings to one choice. ``is_first``: nothing of it was sent before."""

    index: int
    piece: Piece
    is_first: bool


@dataclass(frozen=True, slots=True)
class PromptRules:
    """``echo_ids``: the prompt's ids where the reply begins with the prompt.

    ``start``: what the prompt says of the channels; None where nothing is split.
    """

    text: TextRules
    num_choices: int
    echo_ids: list[int] | None = None
    start: SplitState | None = None


class Prompt:
    """One prompt of a reply; it goes on from ``state``, which it changes."""

    def __init__(self, rules: PromptRules, state: PromptState | None = None) -> None:
        before = {} if state is None else state.choices
        self._rules = rules
        self._choices = {index: open_choice(each, rules.text) for index, each in before.items()}

    def feed(self, delta: GenerateDelta) -> list[ChoiceUpdate]:
        """What ``delta`` brings, by choice index.

        All ``num_choices`` choices begin with the first delta, because only that one has the
        prompt's logprobs (and those that the delta holds, if there are more). Deltas for a choice
        that is done change nothing.
        """
        pieces = {} if self._choices else self._begin(delta)
        first = set(pieces)
        for each in delta.choices:
            choice = self._choices.get(each.index)
            if choice is None:
                first.add(each.index)
                choice = self._open(each.index, ChoiceState(split=self._rules.start))
            elif choice.is_done:
                continue
            piece = choice.feed(each)
            earlier = pieces.get(each.index)
            pieces[each.index] = piece if earlier is None else earlier.then(piece)
        return [ChoiceUpdate(index, pieces[index], index in first) for index in sorted(pieces)]

    def choice(self, index: int) -> Choice:
        """One that has begun."""
        return self._choices[index]

    def state(self) -> PromptState:
        return PromptState({index: choice.state() for index, choice in self._choices.items()})

    def num_tokens(self) -> int:
        """Tokens that count for usage: what came after a stop is not among them."""
        return sum(choice.num_tokens for choice in self._choices.values())

    def is_cut(self) -> bool:
        """Whether a stop string ended a choice, so that generate may have counted more tokens."""
        return any(choice.is_cut for choice in self._choices.values())

    def is_done(self) -> bool:
        """Whether all ``num_choices`` choices are finished or stopped."""
        num_done = sum(choice.is_done for choice in self._choices.values())
        return num_done >= self._rules.num_choices

    def _begin(self, delta: GenerateDelta) -> dict[int, Piece]:
        echo = _echo(delta.prompt_logprobs, self._rules)
        indexes = {*range(self._rules.num_choices), *(choice.index for choice in delta.choices)}
        for index in indexes:
            lane = LaneState(text_len=len(echo.text))
            self._open(index, ChoiceState(lanes={"content": lane}, split=self._rules.start))
        return dict.fromkeys(indexes, echo)

    def _open(self, index: int, state: ChoiceState) -> Choice:
        choice = self._choices[index] = open_choice(state, self._rules.text)
        return choice


def echo_piece(token_ids: list[int], logprobs: Logprobs | None, rules: TextRules) -> Piece:
    """The prompt as text and entries; without ``logprobs`` no entry has a score."""
    prompt = ChoiceDelta(index=0, token_ids=token_ids, logprobs=logprobs, finish_reason="length")
    piece = open_choice(ChoiceState(), replace(rules, stops=(), min_tokens=0)).feed(prompt)
    num_stripped = _start_strip_len(piece, rules.table)
    for entry in piece.entries:
        entry.offset = max(0, entry.offset - num_stripped)
    return msgspec.structs.replace(piece, text=piece.text[num_stripped:], finish_reason=None)


def _echo(logprobs: Logprobs | None, rules: PromptRules) -> Piece:
    if rules.echo_ids is None:
        return Piece()
    return echo_piece(rules.echo_ids, logprobs, rules.text)


def _start_strip_len(piece: Piece, table: TokenTable) -> int:
    """How many spaces a decoder drops at the start of a whole text; an echo is one."""
    num_spaces = len(piece.text) - len(piece.text.lstrip(" "))
    if table.start_strip == "one_space":
        return min(1, num_spaces)
    if table.start_strip == "first_token_spaces":
        return min(num_spaces, _first_text_len(piece.entries))
    return 0


def _first_text_len(entries: Sequence[Entry]) -> int:
    return next((entry.end - entry.offset for entry in entries if entry.end > entry.offset), 0)
