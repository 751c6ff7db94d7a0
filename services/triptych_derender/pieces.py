"""What one delta adds to a choice, before it is written as an OpenAI body.

Structs of msgspec, since frozen dataclasses take several times as long to make.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from triptych.response_template import Channel
from triptych.wire import FinishReason
from triptych_derender.lanes import Entry
from triptych_derender.split_state import CallDelta

EndReason = FinishReason | Literal["tool_calls"]


class ChannelPiece(msgspec.Struct, frozen=True):
    """What one delta adds beside content, with a response template.

    ``entries``: of the other channels that the client may see. ``token_ids``: of the tokens of all
    channels that the client may see, in order.
    """

    reasoning: str = ""
    calls: Sequence[CallDelta] = ()
    entries: dict[Channel, list[Entry]] = {}
    token_ids: list[int] = []

    def then(self, later: "ChannelPiece") -> "ChannelPiece":
        return ChannelPiece(
            reasoning=self.reasoning + later.reasoning,
            calls=[*self.calls, *later.calls],
            entries={
                name: [*self.entries.get(name, ()), *entries]
                for name, entries in later.entries.items()
            },
            token_ids=self.token_ids + later.token_ids,
        )


class Piece(msgspec.Struct, frozen=True):
    """What one delta adds to a choice.

    ``entries``: the tokens whose text is in ``text``. ``is_scored``: generate sent logprobs.
    ``channels``: only with a response template.
    """

    text: str = ""
    entries: Sequence[Entry] = ()
    is_scored: bool = False
    finish_reason: EndReason | None = None
    stop_reason: int | str | None = None
    channels: ChannelPiece | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.entries or self.finish_reason)

    def token_ids(self) -> list[int]:
        if self.channels is not None:
            return self.channels.token_ids
        return [entry.token_id for entry in self.entries]

    def then(self, later: "Piece") -> "Piece":
        """This piece and a later one of the same choice as one."""
        return Piece(
            text=self.text + later.text,
            entries=[*self.entries, *later.entries],
            is_scored=self.is_scored or later.is_scored,
            finish_reason=later.finish_reason,
            stop_reason=later.stop_reason,
            channels=(self.channels or ChannelPiece()).then(later.channels)
            if later.channels
            else None,
        )
