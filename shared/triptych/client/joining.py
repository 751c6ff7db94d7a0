"""Streams put together again: the chunks of a stream as the reply that was not streamed."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from triptych.client.replies import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatReply,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    ReplyMessage,
    ToolCall,
)

_ChoiceT = TypeVar("_ChoiceT", ChatChunkChoice, CompletionChoice)
_ItemT = TypeVar("_ItemT")


def join_chat(chunks: Iterable[ChatChunk]) -> ChatReply:
    """The reply that the chunks of one chat stream are; there has to be one chunk at least."""
    given = list(chunks)
    return ChatReply(
        id=given[0].id,
        created=given[0].created,
        model=given[0].model,
        prompt_logprobs=_last(chunk.prompt_logprobs for chunk in given),
        prompt_token_ids=_last(chunk.prompt_token_ids for chunk in given),
        choices=[_chat_choice(parts) for parts in _by_index(chunk.choices for chunk in given)],
        usage=_last(chunk.usage for chunk in given),
    )


def join_completion(chunks: Iterable[Completion]) -> Completion:
    """The reply that the chunks of one completions stream are; at least one."""
    given = list(chunks)
    return Completion(
        id=given[0].id,
        created=given[0].created,
        model=given[0].model,
        choices=[_completion_choice(each) for each in _by_index(chunk.choices for chunk in given)],
        usage=_last(chunk.usage for chunk in given),
    )


def _by_index(choices: Iterable[Sequence[_ChoiceT]]) -> list[list[_ChoiceT]]:
    parts: dict[int, list[_ChoiceT]] = {}
    for choice in chain.from_iterable(choices):
        parts.setdefault(choice.index, []).append(choice)
    return [parts[index] for index in sorted(parts)]


def _chat_choice(parts: list[ChatChunkChoice]) -> ChatChoice:
    deltas = [part.delta for part in parts]
    return ChatChoice(
        index=parts[0].index,
        finish_reason=_last(part.finish_reason for part in parts),
        stop_reason=_stop_reason(parts),
        token_ids=_concat(part.token_ids for part in parts),
        logprobs=_chat_logprobs([part.logprobs for part in parts if part.logprobs is not None]),
        message=ReplyMessage(
            role=_last(delta.role for delta in deltas),
            content=_text(delta.content for delta in deltas),
            reasoning_content=_text(delta.reasoning_content for delta in deltas) or None,
            tool_calls=_calls(chain.from_iterable(delta.tool_calls or () for delta in deltas)),
        ),
    )


def _completion_choice(parts: list[CompletionChoice]) -> CompletionChoice:
    scored = [part.logprobs for part in parts if part.logprobs is not None]
    return CompletionChoice(
        index=parts[0].index,
        finish_reason=_last(part.finish_reason for part in parts),
        stop_reason=_stop_reason(parts),
        token_ids=_concat(part.token_ids for part in parts),
        text="".join(part.text for part in parts),
        logprobs=_completion_logprobs(scored) if scored else None,
        prompt_logprobs=_last(part.prompt_logprobs for part in parts),
        prompt_token_ids=_last(part.prompt_token_ids for part in parts),
    )


def _chat_logprobs(parts: list[ChatLogprobs]) -> ChatLogprobs | None:
    if not parts:
        return None
    return ChatLogprobs(
        content=_concat(part.content for part in parts),
        reasoning_content=_concat(part.reasoning_content for part in parts),
        tool_calls=_concat(part.tool_calls for part in parts),
        markup=_concat(part.markup for part in parts),
    )


def _completion_logprobs(parts: list[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=[listed for part in parts for listed in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def _stop_reason(parts: Sequence[ChatChunkChoice | CompletionChoice]) -> int | str | None:
    return next((part.stop_reason for part in parts if part.stop_reason is not None), None)


def _calls(deltas: Iterable[ToolCall]) -> list[ToolCall] | None:
    parts: dict[int | None, list[ToolCall]] = {}
    for delta in deltas:
        parts.setdefault(delta.index, []).append(delta)
    calls = [
        ToolCall(
            id=_last(each.id for each in call),
            type=_last(each.type for each in call),
            function=CalledFunction(
                name=_last(each.function.name for each in call),
                arguments="".join(each.function.arguments for each in call),
            ),
        )
        for call in parts.values()
    ]
    return calls or None


def _text(parts: Iterable[str | None]) -> str | None:
    """The joined text, None if nobody gave one."""
    given = [part for part in parts if part is not None]
    return "".join(given) if given else None


def _concat(parts: Iterable[list[_ItemT] | None]) -> list[_ItemT] | None:
    given = [part for part in parts if part is not None]
    return list(chain.from_iterable(given)) if given else None


def _last(values: Iterable[_ItemT | None]) -> _ItemT | None:
    return next((value for value in reversed(list(values)) if value is not None), None)
