"""What chat and completions replies have in common: the head, the writer, the choice of fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import msgspec

from triptych.logprobs import Logprobs
from triptych.reply import ReplySpec
from triptych.response_template import Channel
from triptych.wire import Usage
from triptych_derender.entries import EntryWriter, prompt_logprobs_json
from triptych_derender.pieces import Piece
from triptych_derender.prompts import ChoiceUpdate
from triptych_derender.token_table import TokenTable

if TYPE_CHECKING:
    from triptych_derender.lanes import Entry


class StreamUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage as a chunk shows it: with details where there are some, or with all fields."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int] | msgspec.UnsetType | None = msgspec.UNSET
    completion_tokens_details: dict[str, int] | msgspec.UnsetType | None = msgspec.UNSET


class PromptFacts(msgspec.Struct, frozen=True):
    """What a reply says of one prompt."""

    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class PromptReply:
    """One prompt's finished choices by index."""

    facts: PromptFacts
    pieces: dict[int, Piece]


class ReplyFormat(Protocol):
    """The OpenAI bodies of one endpoint for one request."""

    def whole(self, prompts: list[PromptReply], *, num_choices: int, usage: Usage) -> bytes:
        """The body of a whole reply; choices are numbered prompt by prompt."""
        ...

    def chunks(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> list[bytes]:
        """Stream chunks, one choice each, as an OpenAI client sees them."""
        ...

    def stateless_chunk(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> bytes:
        """One chunk with all choices of a generate chunk, all fields present."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that ends a stream whose client asked for usage."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What every body of one reply is written with."""

    spec: ReplySpec
    request_id: str
    created: int
    table: TokenTable
    writer: EntryWriter
    call_id_chars: int | None = None

    def logprobs(self, piece: Piece) -> msgspec.Raw | None:
        """The ``logprobs`` field; null unless asked and scored."""
        if not self.spec.logprobs:
            return None
        channels: dict[Channel, Sequence[Entry]] = {"content": piece.entries}
        entries = piece.entries
        if piece.channels is not None:
            channels |= piece.channels.entries
            entries = list(chain.from_iterable(channels.values()))
        is_scored = bool(entries) and piece.is_scored
        if not is_scored and not any(entry.candidates.ids for entry in entries):
            return None
        spec, writer = self.spec, self.writer
        if spec.endpoint == "completions":
            return msgspec.Raw(writer.completion(entries, skip_special=spec.skip_special_tokens))
        lists = {
            name: writer.chat(
                each,
                top_logprobs=self.num_shown,
                skip_special=spec.skip_special_tokens,
                hides_tokens=not spec.include_reasoning,
            )
            for name, each in channels.items()
        }
        return msgspec.Raw(_by_channel(lists))

    def plain_logprobs_parts(
        self, channels: Sequence[Channel], channel: Channel
    ) -> tuple[bytes, bytes] | None:
        """The ``logprobs`` field around the positions of ``channel``; None unless asked."""
        if not self.spec.logprobs:
            return None
        place = b"\0"
        lists = {name: b"[%b]" % (place if name == channel else b"") for name in channels}
        before, after = _by_channel(lists).split(place)
        return before, after

    @property
    def num_shown(self) -> int | None:
        """Most candidates of a position that chat shows; None = all."""
        shown = self.spec.top_logprobs
        return None if shown is None or shown < 0 else shown

    def prompt_logprobs(self, facts: PromptFacts) -> msgspec.Raw | None:
        """The ``prompt_logprobs`` field; null unless asked and given."""
        if not self.spec.prompt_logprobs or facts.logprobs is None:
            return None
        return msgspec.Raw(
            prompt_logprobs_json(
                self.table,
                facts.logprobs,
                facts.token_ids,
                skip_special=self.spec.skip_special_tokens,
            )
        )

    def output_ids(self, piece: Piece, num_echoed: int = 0) -> list[int] | None:
        """The ``token_ids`` field, without echoed prompt ids; null unless asked."""
        return piece.token_ids()[num_echoed:] if self.spec.return_token_ids else None

    def prompt_ids(self, facts: PromptFacts) -> list[int] | None:
        return facts.token_ids if self.spec.return_token_ids else None


def _by_channel(lists: dict[Channel, bytes]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), each) for name, each in lists.items())


def stream_usage(usage: Usage | None) -> StreamUsage | msgspec.UnsetType:
    """Usage without empty details; an absent one leaves the field out."""
    if usage is None:
        return msgspec.UNSET
    return StreamUsage(
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.total_tokens,
        completion_tokens=usage.completion_tokens,
        prompt_tokens_details=usage.prompt_tokens_details or msgspec.UNSET,
    )


def full_usage(usage: Usage | None) -> StreamUsage | None:
    """Usage with all fields, for one chunk by itself."""
    return None if usage is None else StreamUsage(**msgspec.structs.asdict(usage))
