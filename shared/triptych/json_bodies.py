"""Generate's answers in JSON, an object per candidate: decoded by derender, encoded by generate.

Field names and order are those of vLLM's ``/inference/v1/generate``; fields that exist only there
are null. The packed columns of ``triptych.logprobs`` are used everywhere else.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Annotated, Any, Literal

import msgspec

from triptych.float32 import float32_texts
from triptych.logprobs import Logprobs
from triptych.wire import (
    MAX_TOKEN_ID,
    ChoiceDelta,
    FinishReason,
    Generated,
    GenerateDelta,
    LogprobsMode,
    Usage,
)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One candidate. ``rank`` counts from 1; 0 = the sender did not say."""

    token_id: TokenId
    logprob: float
    rank: int | None = 0


class PositionLogprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One output token and the candidates at its position."""

    token_id: TokenId
    logprob: float
    rank: int | None = 0
    top_logprobs: list[TokenLogprob] = []


class ContentLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """A choice's ``logprobs``."""

    content: list[PositionLogprobs] | None = None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate at a prompt position; ``decoded_token`` is ignored."""

    logprob: float
    rank: int | None = 0


_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}

PromptPosition = dict[TokenId, PromptLogprob]


class ResponseChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, whole or a stream's delta.

    ``finish_reason``: other engines have more of them (vLLM's ``repetition``); all that OpenAI
    does not know count as ``stop``.
    """

    token_ids: list[TokenId]
    index: Count = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ContentLogprobs | None = None


class SentPromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``prompt_tokens_details`` that is shown; others differ between engines."""

    cached_tokens: Count | None = None


class SentUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a generate service counted."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: SentPromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details or SentPromptDetails()).cached_tokens or 0


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a whole generate answer."""

    request_id: str
    choices: list[ResponseChoice]
    model: str | None = None
    created: int = 0
    usage: SentUsage | None = None
    prompt_logprobs: list[PromptPosition | None] | None = None
    prompt_token_ids: list[TokenId] | None = None
    output_mode: Literal["tokens"] = "tokens"
    logprobs_mode: LogprobsMode = "raw"

    def to_generated(self, *, prompt_tokens: int, prompt_token_ids: list[int] | None) -> Generated:
        """The same answer with packed columns; the caller's prompt facts win over the body's."""
        token_ids = prompt_token_ids if prompt_token_ids is not None else self.prompt_token_ids
        return Generated(
            request_id=self.request_id,
            model=self.model or "",
            created=self.created,
            prompt_tokens=prompt_tokens,
            choices=[_choice_delta(choice) for choice in self.choices],
            prompt_logprobs=_prompt_columns(self.prompt_logprobs, token_ids),
            prompt_token_ids=token_ids,
            logprobs_mode=self.logprobs_mode,
            cached_tokens=0 if self.usage is None else self.usage.cached_tokens,
        )


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a generate stream; the last one may hold usage and no choices."""

    request_id: str
    choices: list[ResponseChoice]
    usage: SentUsage | None = None
    prompt_logprobs: list[PromptPosition | None] | None = None
    prompt_token_ids: list[TokenId] | None = None
    output_mode: Literal["tokens"] = "tokens"

    def to_delta(self, prompt_token_ids: list[int] | None = None) -> GenerateDelta:
        """The same delta with packed columns."""
        token_ids = prompt_token_ids if prompt_token_ids is not None else self.prompt_token_ids
        return GenerateDelta(
            request_id=self.request_id,
            choices=[_choice_delta(choice) for choice in self.choices],
            prompt_logprobs=_prompt_columns(self.prompt_logprobs, token_ids),
        )


def encode_generate_response(answer: Generated) -> bytes:
    """The JSON body of a whole answer."""
    body = ResponseJson(
        request_id=answer.request_id,
        model=answer.model,
        created=answer.created,
        usage=answer.usage(),
        prompt_logprobs=_prompt_json(answer.prompt_logprobs),
        prompt_token_ids=answer.prompt_token_ids,
        choices=[_choice_json(choice) for choice in answer.choices],
        logprobs_mode=answer.logprobs_mode,
    )
    return msgspec.json.encode(body)


def encode_generate_chunk(
    delta: GenerateDelta, usage: Usage | None = None, prompt_token_ids: list[int] | None = None
) -> bytes:
    """The JSON of one stream event, without SSE framing.

    ``prompt_token_ids`` and prompt logprobs are written only where there are some (on the first
    event of a stream that asked for them).
    """
    body = ChunkJson(
        request_id=delta.request_id,
        usage=usage,
        prompt_token_ids=msgspec.UNSET if prompt_token_ids is None else prompt_token_ids,
        choices=[_choice_json(choice) for choice in delta.choices],
        prompt_logprobs=_prompt_json(delta.prompt_logprobs) or msgspec.UNSET,
    )
    return msgspec.json.encode(body)


class ChoiceJson(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: None = None
    logprobs: msgspec.Raw | None = None


class ResponseJson(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: msgspec.Raw | None
    prompt_token_id_logprobs: None = None
    prompt_token_ids: list[int] | None
    mm_placeholders: None = None
    metrics: None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None
    output_mode: str = "tokens"
    choices: list[ChoiceJson]
    logprobs_mode: str


class ChunkJson(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    usage: Usage | None
    prompt_token_ids: list[int] | msgspec.UnsetType
    output_mode: str = "tokens"
    choices: list[ChoiceJson]
    prompt_logprobs: msgspec.Raw | msgspec.UnsetType


def _choice_json(choice: ChoiceDelta) -> ChoiceJson:
    logprobs = choice.logprobs
    return ChoiceJson(
        index=choice.index,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids,
        logprobs=None if logprobs is None else msgspec.Raw(_content_json(logprobs)),
    )


def _content_json(logprobs: Logprobs) -> bytes:
    candidates = [
        b'{"token_id":%d,"logprob":%b,"rank":%d}' % candidate
        for candidate in zip(
            logprobs.token_ids, float32_texts(logprobs.logprobs), logprobs.ranks, strict=True
        )
    ]
    positions = []
    start = 0
    for count in logprobs.counts:
        listed = candidates[start : start + count]
        # the position repeats its sampled token: the same object without its closing brace
        positions.append(b'%b,"top_logprobs":[%b]}' % (listed[0][:-1], b",".join(listed)))
        start += count
    return b'{"content":[%b]}' % b",".join(positions)


def _prompt_json(logprobs: Logprobs | None) -> msgspec.Raw | None:
    if logprobs is None:
        return None
    candidates = [
        b'"%d":{"logprob":%b,"rank":%d,"decoded_token":null}' % candidate
        for candidate in zip(
            logprobs.token_ids, float32_texts(logprobs.logprobs), logprobs.ranks, strict=True
        )
    ]
    positions = []
    start = 0
    for count in logprobs.counts:
        listed = b",".join(candidates[start : start + count])
        positions.append(b"{%b}" % listed if count else b"null")
        start += count
    return msgspec.Raw(b"[%b]" % b",".join(positions))


def _choice_delta(choice: ResponseChoice) -> ChoiceDelta:
    content = choice.logprobs.content if choice.logprobs is not None else None
    return ChoiceDelta(
        index=choice.index,
        token_ids=choice.token_ids,
        logprobs=None if content is None else _content_columns(content),
        finish_reason=_finish_reason(choice.finish_reason),
        stop_reason=choice.stop_reason,
    )


def _finish_reason(sent: str | None) -> FinishReason | None:
    return None if sent is None else _FINISH_REASONS.get(sent, "stop")


def _content_columns(content: list[PositionLogprobs]) -> Logprobs:
    listed: list[Sequence[TokenLogprob | PositionLogprobs]]
    listed = [position.top_logprobs for position in content]
    columns = _columns(listed)
    unordered = _unordered_positions(content, columns)
    if not unordered:
        return columns
    for number in unordered:
        listed[number] = _sampled_first(content[number])
    return _columns(listed)


def _columns(listed: Sequence[Sequence[TokenLogprob | PositionLogprobs]]) -> Logprobs:
    flat = list(chain.from_iterable(listed))
    return Logprobs(
        counts=list(map(len, listed)),
        token_ids=[candidate.token_id for candidate in flat],
        logprobs=[candidate.logprob for candidate in flat],
        ranks=[candidate.rank or 0 for candidate in flat],
    )


def _unordered_positions(content: list[PositionLogprobs], columns: Logprobs) -> list[int]:
    """The positions that do not begin with their sampled token or have an id twice."""
    unordered = []
    ends = accumulate(columns.counts)
    for number, (count, end) in enumerate(zip(columns.counts, ends, strict=True)):
        ids = columns.token_ids[end - count : end]
        if not ids or ids[0] != content[number].token_id or len(set(ids)) != count:
            unordered.append(number)
    return unordered


def _sampled_first(position: PositionLogprobs) -> list[TokenLogprob | PositionLogprobs]:
    """The candidates, sampled token first, each id once (generate's order is kept)."""
    once: dict[int, TokenLogprob | PositionLogprobs] = {position.token_id: position}
    for candidate in position.top_logprobs:
        once.setdefault(candidate.token_id, candidate)
    return list(once.values())


def _prompt_columns(
    positions: list[PromptPosition | None] | None, token_ids: list[int] | None
) -> Logprobs | None:
    """Columns with the prompt's own token first in each position, where it is known."""
    if positions is None:
        return None
    columns = Logprobs(counts=[], token_ids=[], logprobs=[], ranks=[])
    for number, position in enumerate(positions):
        own_id = token_ids[number] if token_ids and number < len(token_ids) else None
        listed = sorted((position or {}).items(), key=lambda item: item[0] != own_id)
        columns.counts.append(len(listed))
        columns.token_ids.extend(token_id for token_id, _ in listed)
        columns.logprobs.extend(candidate.logprob for _, candidate in listed)
        columns.ranks.extend(candidate.rank or 0 for _, candidate in listed)
    return columns
