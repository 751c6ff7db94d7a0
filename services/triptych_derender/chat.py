"""OpenAI chat bodies: ``chat.completion`` and ``chat.completion.chunk``.

Fields and their order are those that vLLM answers; fields that exist only there are null.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from triptych.response_template import Channel
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
from triptych_derender.plain import PlainForm
from triptych_derender.prompts import ChoiceUpdate
from triptych_derender.tool_calls import ToolCall, call_deltas, whole_calls

#: Stand in a template for what each chunk has of its own.
_TEXT_PLACE, _IDS_PLACE = "\0", [-1]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: None = None
    reasoning_content: str | UnsetType | None = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: Message
    logprobs: msgspec.Raw | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None = None
    weight_versions: None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    prompt_logprobs: msgspec.Raw | None
    prompt_token_ids: list[int] | None
    prompt_text: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType | None = UNSET
    content: str | None
    reasoning: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: msgspec.Raw | None
    finish_reason: str | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    weight_versions: UnsetType | None = UNSET


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: StreamUsage | UnsetType | None = UNSET
    system_fingerprint: UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: UnsetType | None = UNSET
    prompt_logprobs: msgspec.Raw | UnsetType = UNSET
    metrics: UnsetType | None = UNSET
    kv_transfer_params: UnsetType | None = UNSET


class ChatFormat:
    """Chat's ``ReplyFormat``; a chat request has one prompt."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._head: dict[str, Any] = {
            "id": context.request_id,
            "created": context.created,
            "model": context.spec.model,
        }

    def whole(self, prompts: list[PromptReply], *, num_choices: int, usage: Usage) -> bytes:
        (prompt,) = prompts
        choices = [self._choice(index, piece) for index, piece in sorted(prompt.pieces.items())]
        reply = Reply(
            **self._head,
            choices=choices,
            usage=usage,
            prompt_logprobs=self._context.prompt_logprobs(prompt.facts),
            prompt_token_ids=self._context.prompt_ids(prompt.facts),
        )
        return msgspec.json.encode(reply)

    def chunks(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> list[bytes]:
        roles, chunks = [], []
        for update in updates:
            if update.is_first:
                roles.append(self._role_chunk(update.index, facts, usage))
            if self._is_shown(update.piece):
                chunks.append(self._delta_chunk(update, usage))
        return roles + chunks

    def stateless_chunk(
        self, updates: list[ChoiceUpdate], facts: PromptFacts, usage: Usage | None
    ) -> bytes:
        is_first = any(update.is_first for update in updates)
        return self._encode(
            [self._stateless_choice(update) for update in updates],
            usage=full_usage(usage),
            system_fingerprint=None,
            prompt_token_ids=self._context.prompt_ids(facts) if is_first else None,
            prompt_text=None,
            prompt_logprobs=self._prompt_logprobs(facts) if is_first else UNSET,
            metrics=None,
            kv_transfer_params=None,
        )

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._encode([], usage=stream_usage(usage), system_fingerprint=None)

    def _choice(self, index: int, piece: Piece) -> Choice:
        return Choice(
            index=index,
            message=self._message(index, piece),
            logprobs=self._context.logprobs(piece),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            token_ids=self._context.output_ids(piece),
        )

    def _is_shown(self, piece: Piece) -> bool:
        """Whether a chunk has anything for the client; markup alone has not, unless it is asked."""
        if piece.text or piece.finish_reason:
            return True
        if piece.channels is None:
            return bool(piece.entries)
        spec, others = self._context.spec, piece.channels
        has_text = bool(others.reasoning or others.calls)
        has_entries = spec.logprobs and (piece.entries or any(others.entries.values()))
        return bool(has_text or has_entries or (spec.return_token_ids and others.token_ids))

    def _message(self, index: int, piece: Piece) -> Message:
        if piece.channels is None:
            return Message(content=piece.text)
        calls = whole_calls(piece.channels.calls, self._context, index)
        return Message(
            content=piece.text or None,
            tool_calls=calls or UNSET,
            reasoning_content=piece.channels.reasoning or None,
        )

    def _delta(self, update: ChoiceUpdate, **fields: Any) -> Delta:
        piece = update.piece
        if piece.channels is None:
            return Delta(content=piece.text, **fields)
        calls = call_deltas(piece.channels.calls, self._context, update.index)
        return Delta(
            content=piece.text or None,
            reasoning_content=piece.channels.reasoning or UNSET,
            tool_calls=calls or UNSET,
            **fields,
        )

    def plain_form(self, index: int, channels: Sequence[Channel], channel: Channel) -> PlainForm:
        """How plain tokens of ``channel`` are written, as ``chunks`` does it.

        Args:
            index: of the choice.
            channels: those of its tokens that the client sees.
            channel: the tokens' own.
        """
        is_content = channel == "content"
        delta = Delta(
            content=_TEXT_PLACE if is_content else None,
            reasoning_content=UNSET if is_content else _TEXT_PLACE,
        )
        text_place, ids_place = map(msgspec.json.encode, (_TEXT_PLACE, _IDS_PLACE))
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=msgspec.Raw(text_place),
            finish_reason=None,
            token_ids=_IDS_PLACE,
        )
        before_end, end = self._encode([choice]).rsplit(ids_place, 1)
        before_text, before_logprobs, before_ids = before_end.rsplit(text_place, 2)
        return PlainForm(
            parts=(before_text, before_logprobs, before_ids, end),
            logprobs_parts=self._context.plain_logprobs_parts(channels, channel),
            templates=self._context.writer.templates,
            num_shown=self._context.num_shown,
            shows_ids=self._context.spec.return_token_ids,
        )

    def _role_chunk(self, index: int, facts: PromptFacts, usage: Usage | None) -> bytes:
        choice = ChunkChoice(
            index=index,
            delta=Delta(role="assistant", content=""),
            logprobs=None,
            finish_reason=None,
        )
        return self._encode(
            [choice],
            usage=stream_usage(usage),
            prompt_token_ids=self._context.prompt_ids(facts),
            prompt_text=None,
            prompt_logprobs=self._prompt_logprobs(facts),
        )

    def _delta_chunk(self, update: ChoiceUpdate, usage: Usage | None) -> bytes:
        piece, context = update.piece, self._context
        choice = ChunkChoice(
            index=update.index,
            delta=self._delta(update),
            logprobs=context.logprobs(piece),
            finish_reason=piece.finish_reason,
            stop_reason=UNSET if piece.finish_reason is None else piece.stop_reason,
            token_ids=context.output_ids(piece),
        )
        return self._encode([choice], usage=stream_usage(usage))

    def _stateless_choice(self, update: ChoiceUpdate) -> ChunkChoice:
        piece = update.piece
        role = "assistant" if update.is_first else None
        return ChunkChoice(
            index=update.index,
            delta=self._delta(update, role=role, reasoning=None),
            logprobs=self._context.logprobs(piece),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            token_ids=self._context.output_ids(piece),
            weight_versions=None,
        )

    def _prompt_logprobs(self, facts: PromptFacts) -> msgspec.Raw | UnsetType:
        return self._context.prompt_logprobs(facts) or UNSET

    def _encode(self, choices: list[ChunkChoice], **fields: Any) -> bytes:
        return msgspec.json.encode(Chunk(**self._head, choices=choices, **fields))
