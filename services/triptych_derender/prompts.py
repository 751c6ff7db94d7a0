"""One prompt of a reply: its echo, and the states of its choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from triptych.logprobs import Logprobs
from triptych.wire import ChoiceDelta, GenerateDelta
from triptych_derender.choice import ChoiceState, TextRules, advance
from triptych_derender.lanes import Entry, LaneState
from triptych_derender.pieces import Piece
from triptych_derender.split_state import SplitState
from triptych_derender.token_table import TokenTable


class PromptState(msgspec.Struct, array_like=True):
    """The choices of one prompt by index; empty before the first delta."""

    choices: dict[int, ChoiceState] = {}

    def num_tokens(self) -> int:
        """Tokens that count for usage: what came after a stop is not among them."""
        return sum(choice.num_tokens for choice in self.choices.values())

    def is_cut(self) -> bool:
        """Whether a stop string ended a choice, so that generate may have counted more tokens."""
        return any(choice.is_cut for choice in self.choices.values())

    def is_done(self, num_choices: int) -> bool:
        return sum(choice.is_done for choice in self.choices.values()) >= num_choices


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


def advance_prompt(
    state: PromptState, delta: GenerateDelta, rules: PromptRules
) -> tuple[PromptState, list[ChoiceUpdate]]:
    """The state after ``delta``, and the updates by choice index.

    All ``num_choices`` choices begin with the first delta, because only that one has the prompt's
    logprobs (and those that the delta holds, if there are more). Deltas for a choice that is done
    change nothing.
    """
    choices = state.choices.copy()
    pieces: dict[int, Piece] = {}
    if not choices:
        echo = _echo(delta.prompt_logprobs, rules)
        for index in {*range(rules.num_choices), *(choice.index for choice in delta.choices)}:
            lane = LaneState(text_len=len(echo.text))
            choices[index] = ChoiceState(lanes={"content": lane}, split=rules.start)
            pieces[index] = echo
    for choice in delta.choices:
        before = choices.get(choice.index) or ChoiceState(split=rules.start)
        if before.is_done:
            continue
        choices[choice.index], piece = advance(before, choice, rules.text)
        earlier = pieces.get(choice.index)
        pieces[choice.index] = piece if earlier is None else earlier.then(piece)
    updates = [
        ChoiceUpdate(index, pieces[index], index not in state.choices) for index in sorted(pieces)
    ]
    return PromptState(choices=choices), updates


def echo_piece(token_ids: list[int], logprobs: Logprobs | None, rules: TextRules) -> Piece:
    """The prompt as text and entries; without ``logprobs`` no entry has a score."""
    prompt = ChoiceDelta(index=0, token_ids=token_ids, logprobs=logprobs, finish_reason="length")
    _, piece = advance(ChoiceState(), prompt, replace(rules, stops=(), min_tokens=0))
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
