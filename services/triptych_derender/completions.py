"""OpenAI completions bodies: ``text_completion``, whole and as stream chunks.

Fields and their order are those that vLLM answers; fields that exist only there are null.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from triptych.wire import Usage
from triptych_derender.formats import (
    PromptFacts,
    PromptReply,
    ReplyContext,
    StreamUsage,
    full_usage,
    stream_usage,
)
from triptych_derender.pieces import Piece
from triptych_derender.prompts import ChoiceUpdate


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: msgspec.Raw | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: msgspec.Raw | None
    prompt_token_ids: list[int] | None
    routed_experts: None = None
    weight_versions: None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: msgspec.Raw | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    prompt_logprobs: msgspec.Raw | UnsetType = UNSET


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: StreamUsage | UnsetType | None = UNSET
    system_fingerprint: UnsetType | None = UNSET


class CompletionFormat:
    """The completions ``ReplyFormat``."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context

    def whole(self, prompts: list[PromptReply], *, num_choices: int, usage: Usage) -> bytes:
        choices = [
            self._choice(number * num_choices + index, piece, prompt.facts)
            for number, prompt in enumerate(prompts)
            for index, piece in sorted(prompt.pieces.items())
        ]
        return msgspec.json.encode(Reply(**self._head(), choices=choices, usage=usage))

    def chunks(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> list[bytes]:
        return [
            self._encode([choice], usage=stream_usage(usage))
            for update in updates
            if (choice := self._chunk_choice(update, facts)) is not None
        ]

    def stateless_chunk(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> bytes:
        choices = [self._full_chunk_choice(update, facts) for update in updates]
        return self._encode(choices, usage=full_usage(usage), system_fingerprint=None)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._encode([], usage=stream_usage(usage), system_fingerprint=None)

    def _choice(self, index: int, piece: Piece, facts: PromptFacts) -> Choice:
        context = self._context
        return Choice(
            index=index,
            text=piece.text,
            logprobs=context.logprobs(piece),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            token_ids=context.output_ids(piece, self._num_echoed(facts)),
            prompt_logprobs=context.prompt_logprobs(facts),
            prompt_token_ids=context.prompt_ids(facts),
        )

    def _chunk_choice(self, update: ChoiceUpdate, facts: PromptFacts) -> ChunkChoice | None:
        """The choice of a chunk, or None if there is nothing to send yet."""
        choice = self._full_chunk_choice(update, facts)
        has_prompt = choice.prompt_token_ids is not None or choice.prompt_logprobs is not UNSET
        return choice if has_prompt or not update.piece.is_empty else None

    def _full_chunk_choice(self, update: ChoiceUpdate, facts: PromptFacts) -> ChunkChoice:
        context, piece = self._context, update.piece
        num_echoed = self._num_echoed(facts) if update.is_first else 0
        return ChunkChoice(
            index=update.index,
            text=piece.text,
            logprobs=context.logprobs(piece),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            prompt_token_ids=context.prompt_ids(facts) if update.is_first else None,
            token_ids=context.output_ids(piece, num_echoed),
            prompt_logprobs=(update.is_first and context.prompt_logprobs(facts)) or UNSET,
        )

    def _num_echoed(self, facts: PromptFacts) -> int:
        return len(facts.token_ids or ()) if self._context.spec.echo else 0

    def _encode(self, choices: list[ChunkChoice], **fields: Any) -> bytes:
        return msgspec.json.encode(Chunk(**self._head(), choices=choices, **fields))

    def _head(self) -> dict[str, Any]:
        context = self._context
        return {
            "id": context.request_id,
            "created": context.created,
            "model": context.spec.model,
        }
