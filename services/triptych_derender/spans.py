"""What a response template makes of a text: spans, and the state between them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from triptych.response_template import Channel
from triptych_derender.json_strings import StringState

#: Characters before the current one that patterns which look behind still see.
CONTEXT_LEN = 16


class RegionState(msgspec.Struct, array_like=True):
    """Where in a template an output is.

    ``field``: the region that a tag opened; None outside of one, where the template's leftover
    field takes the text. ``is_open``: the region has begun. ``context``: the last characters that
    are read, for patterns that look behind. ``string``: see ``json_strings``, of a region of JSON.
    """

    field: str | None = None
    is_open: bool = False
    context: str = ""
    string: StringState = ""

    def after(self, text: str) -> "RegionState":
        """The state after ``text`` of this region."""
        context = (self.context + text)[-CONTEXT_LEN:]
        return RegionState(self.field, is_open=True, context=context, string=self.string)


class PlainRegion(NamedTuple):
    """Text of ``channel`` that begins no tag: one begins with a character of ``tag_starts``."""

    channel: Channel
    is_stripped: bool
    tag_starts: frozenset[str]


@dataclass(slots=True)
class Span:
    """Some characters: of a region's text, or the delimiter that opens or closes it.

    ``field`` is None for text that no field of the template takes.
    """

    kind: Literal["text", "open", "close"]
    field: str | None
    text: str
    captures: dict[str, str]
