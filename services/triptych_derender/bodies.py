"""Requests of the JSON derender endpoints: decoded, checked, and turned into packed columns."""

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from triptych.errors import InvalidRequestError
from triptych.json_bodies import Count, GenerateChunk, GenerateResponse, SentUsage, TokenId
from triptych.reply import Endpoint, ReplySpec, chat_reply_spec, completion_reply_spec
from triptych.wire import Generated, GenerateDelta, Usage, count_usage
from triptych_derender.checks import check_candidate_counts

_BodyT = TypeVar("_BodyT")


@dataclass(frozen=True, slots=True)
class WholeBody:
    """A whole reply is wanted; one answer per prompt."""

    model: str | None
    spec: ReplySpec
    answers: list[Generated]


@dataclass(frozen=True, slots=True)
class ChunkBody:
    """One chunk is wanted."""

    model: str | None
    spec: ReplySpec
    delta: GenerateDelta
    stream_state: str | None
    prompt_tokens: int
    prompt_token_ids: list[int] | None
    usage: Usage | None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    generate_chunk: GenerateChunk | None = None
    stream_state: str | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    generate_response: GenerateResponse | None = None
    prompt_tokens: Count | None = None
    prompt_token_ids: list[TokenId] | None = None
    chat_request: dict[str, Any] | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    generate_response: GenerateResponse | None = None
    generate_responses: list[GenerateResponse] | None = None
    prompt_tokens: Count | list[Count] | None = None
    prompt_token_ids: list[TokenId | list[TokenId]] | None = None
    completion_request: dict[str, Any] | None = None


#: Larger numbers are not repeated in messages.
_MAX_SHOWN = 10**20

_chat_decoder = msgspec.json.Decoder(ChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)


def parse_chat(body: bytes, *, model: str, max_logprobs: int) -> WholeBody | ChunkBody:
    """The request of ``POST /v1/chat/completions/derender``.

    Args:
        body: its JSON.
        model: the served name, for requests that name none.
        max_logprobs: most candidates beside the sampled one; -1 = no limit.

    Raises:
        InvalidRequestError: malformed, a wrong type (the path is named), or over a limit.
    """
    fields = _decode(body, _chat_decoder)
    if fields.chat_request is None:
        spec = _show_all("chat", model)
    else:
        spec = chat_reply_spec(_without_nulls(fields.chat_request), model=model)
    limit = _candidate_limit(fields.chat_request, max_logprobs)
    if fields.stream or fields.generate_chunk is not None:
        return _chunk_body(fields, spec, limit, fields.prompt_tokens, fields.prompt_token_ids)
    if fields.generate_response is None:
        raise _missing("generate_response")
    answer = _generated(
        fields.generate_response,
        fields.prompt_tokens,
        fields.prompt_token_ids,
        limit,
        path="generate_response",
    )
    return WholeBody(model=fields.model, spec=spec, answers=[answer])


def parse_completion(body: bytes, *, model: str, max_logprobs: int) -> WholeBody | ChunkBody:
    """The request of ``POST /v1/completions/derender``; see ``parse_chat``."""
    fields = _decode(body, _completion_decoder)
    if fields.completion_request is None:
        spec = _show_all("completions", model)
    else:
        spec = completion_reply_spec(_without_nulls(fields.completion_request), model=model)
    limit = _candidate_limit(fields.completion_request, max_logprobs)
    if fields.stream or fields.generate_chunk is not None:
        (tokens,) = _per_answer("prompt_tokens", _as_list(fields.prompt_tokens), 1)
        (token_ids,) = _per_answer("prompt_token_ids", _id_lists(fields.prompt_token_ids), 1)
        return _chunk_body(fields, spec, limit, tokens, token_ids)
    responses = _responses(fields)
    all_tokens = _per_answer("prompt_tokens", _as_list(fields.prompt_tokens), len(responses))
    all_ids = _per_answer("prompt_token_ids", _id_lists(fields.prompt_token_ids), len(responses))
    answers = [
        _generated(response, tokens, token_ids, limit, path=f"generate_responses[{number}]")
        for number, (response, tokens, token_ids) in enumerate(
            zip(responses, all_tokens, all_ids, strict=True)
        )
    ]
    return WholeBody(model=fields.model, spec=spec, answers=answers)


def _responses(fields: CompletionBody) -> list[GenerateResponse]:
    if fields.generate_responses is None:
        if fields.generate_response is None:
            raise _missing("generate_responses")
        return [fields.generate_response]
    if not fields.generate_responses:
        raise InvalidRequestError(
            "generate_responses has 0 answers, at least 1 is needed", param="generate_responses"
        )
    return fields.generate_responses


def _generated(
    response: GenerateResponse,
    prompt_tokens: int | None,
    prompt_token_ids: list[int] | None,
    limit: int | None,
    *,
    path: str,
) -> Generated:
    if not response.choices:
        raise InvalidRequestError(
            f"{path}.choices is empty, at least 1 choice is needed", param=f"{path}.choices"
        )
    token_ids = prompt_token_ids if prompt_token_ids is not None else response.prompt_token_ids
    answer = response.to_generated(
        prompt_tokens=_num_prompt_tokens(prompt_tokens, response.usage, token_ids),
        prompt_token_ids=token_ids,
    )
    for number, choice in enumerate(answer.choices):
        content = f"{path}.choices[{number}].logprobs.content"
        check_candidate_counts(choice.logprobs, limit, path=content)
    check_candidate_counts(answer.prompt_logprobs, limit, path=f"{path}.prompt_logprobs")
    return answer


def _chunk_body(
    fields: _Body,
    spec: ReplySpec,
    limit: int | None,
    prompt_tokens: int | None,
    prompt_token_ids: list[int] | None,
) -> ChunkBody:
    chunk = fields.generate_chunk
    if chunk is None:
        raise _missing("generate_chunk")
    token_ids = prompt_token_ids if prompt_token_ids is not None else chunk.prompt_token_ids
    delta = chunk.to_delta(token_ids)
    for number, choice in enumerate(delta.choices):
        content = f"generate_chunk.choices[{number}].logprobs.content"
        check_candidate_counts(choice.logprobs, limit, path=content)
    check_candidate_counts(delta.prompt_logprobs, limit, path="generate_chunk.prompt_logprobs")
    return ChunkBody(
        model=fields.model,
        spec=spec,
        delta=delta,
        stream_state=fields.stream_state,
        prompt_tokens=_num_prompt_tokens(prompt_tokens, chunk.usage, token_ids),
        prompt_token_ids=token_ids,
        usage=_as_usage(chunk.usage),
    )


def _as_usage(sent: SentUsage | None) -> Usage | None:
    if sent is None:
        return None
    return count_usage(sent.prompt_tokens, sent.completion_tokens, sent.cached_tokens)


def _show_all(endpoint: Endpoint, model: str) -> ReplySpec:
    """The spec of a body without the OpenAI request: all logprobs that came are shown."""
    return ReplySpec(endpoint=endpoint, model=model, logprobs=True, prompt_logprobs=True)


def _without_nulls(request: dict[str, Any]) -> dict[str, Any]:
    """The request as render reads it: null means absent."""
    return {name: value for name, value in request.items() if value is not None}


def _candidate_limit(request: dict[str, Any] | None, max_logprobs: int) -> int | None:
    """Most candidates of a position, sampled included; the request's own ids may raise it."""
    if max_logprobs < 0:
        return None
    listed = [(request or {}).get(name) for name in ("allowed_token_ids", "logprob_token_ids")]
    return 1 + max(max_logprobs, *(len(ids) if isinstance(ids, list) else 0 for ids in listed))


def _num_prompt_tokens(
    given: int | None, usage: SentUsage | None, token_ids: list[int] | None
) -> int:
    if given is not None:
        return given
    return usage.prompt_tokens if usage is not None else len(token_ids or ())


def _as_list(value: int | list[int] | None) -> list[int] | None:
    return [value] if isinstance(value, int) else value


def _id_lists(value: list[int | list[int]] | None) -> list[list[int]] | None:
    """One list of ids per prompt; a flat list is one prompt's."""
    if value is None:
        return None
    lists = [ids for ids in value if isinstance(ids, list)]
    if len(lists) == len(value) and lists:
        return lists
    if lists:
        raise InvalidRequestError(
            "prompt_token_ids mixes ids and lists of ids", param="prompt_token_ids"
        )
    return [[token_id for token_id in value if isinstance(token_id, int)]]


_ItemT = TypeVar("_ItemT")


def _per_answer(name: str, values: list[_ItemT] | None, num: int) -> list[_ItemT] | list[None]:
    if values is None:
        return [None] * num
    if len(values) != num:
        raise InvalidRequestError(
            f"{name} has {len(values)} entries, there are {num} generate_responses", param=name
        )
    return values


def _missing(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} is missing", param=name)


def _decode(body: bytes, decoder: msgspec.json.Decoder[_BodyT]) -> _BodyT:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), body) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error


def _wrong_field(message: str, body: bytes) -> InvalidRequestError:
    """What msgspec says, with the path in the client's words and a number's value."""
    fault, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    value = _value_at(body, path)
    is_short = isinstance(value, int | float) and abs(value) < _MAX_SHOWN
    shown = f", got {value}" if is_short else ""
    where = f"{path}: " if path else ""
    return InvalidRequestError(f"{where}{fault}{shown}", param=path or None)


def _value_at(body: bytes, path: str) -> object:
    try:
        value: Any = msgspec.json.decode(body)
        for name, position in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            value = value[int(position)] if position else value[name]
    except (KeyError, IndexError, TypeError, RecursionError, msgspec.DecodeError):
        return None
    return value
