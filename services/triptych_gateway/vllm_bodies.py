"""vLLM's ``/inference/v1/generate`` in bytes: our requests as its bodies, its answers as ours.

What its engine cannot do as ours does is refused here, before it is asked; ``docs/interop.md``
lists it. The recorded exchanges of vLLM 0.32 are what this is tested against.
"""

from typing import Any

import msgspec

from triptych.errors import (
    BodyTooLargeError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.json_bodies import GenerateChunk, GenerateResponse, ResponseChoice
from triptych.logprobs import Logprobs
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest, ModelInfo, SamplingParams

#: vLLM's default ``--max-logprobs``. Up to it one more candidate is asked for than is wanted.
_MAX_LOGPROBS = 20
#: Names that mean the same on both sides.
_SAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "min_tokens", "ignore_eos", "stop_token_ids", "logit_bias",
    "allowed_token_ids", "prompt_logprobs",
)  # fmt: skip


class Event(GenerateChunk, frozen=True, kw_only=True):
    """One event of vLLM's stream: a chunk, or the error that ended it."""

    request_id: str = ""
    choices: list[ResponseChoice] = msgspec.field(default_factory=list)
    error: dict[str, Any] | None = None


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: dict[str, Any] = {}


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    max_model_len: int = 0


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    data: list[_Model]


def is_streamed(request: GenerateRequest) -> bool:
    """Whether vLLM is asked for a stream; its streams leave prompt logprobs out."""
    return request.sampling_params.prompt_logprobs is None


def encode_request(request: GenerateRequest) -> bytes:
    """The body that asks vLLM for what ``request`` asks.

    Raises:
        UnavailableError: it resumes an answer, which vLLM cannot do to the bit.
        InvalidRequestError: it asks for something that vLLM does not have.
    """
    if request.resume_from or request.choice_index:
        raise UnavailableError("vLLM cannot resume an answer exactly", retry_after_s=1)
    body = {
        "token_ids": request.token_ids,
        "sampling_params": _sampling_params(request.sampling_params),
        "stream": is_streamed(request),
        "request_id": request.request_id,
        "model": request.model,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": request.kv_transfer_params,
    }
    return msgspec.json.encode({name: each for name, each in body.items() if each is not None})


def delta_of_event(data: bytes, request: GenerateRequest) -> GenerateDelta | None:
    """The delta of one event; None where it has no choice (usage).

    Raises:
        TriptychError: the error that it tells.
    """
    event = _decode(data, Event)
    if event.error is not None:
        raise _error(event.error.get("code"), event.error, None)
    return _as_ours(event.to_delta(request.token_ids), request) if event.choices else None


def delta_of_answer(body: bytes, request: GenerateRequest) -> GenerateDelta:
    """A whole answer as the one delta of its stream."""
    answer = _decode(body, GenerateResponse).to_generated(
        prompt_tokens=len(request.token_ids), prompt_token_ids=request.token_ids
    )
    delta = GenerateDelta(
        request_id=answer.request_id,
        choices=answer.choices,
        prompt_logprobs=answer.prompt_logprobs,
        cached_tokens=answer.cached_tokens,
    )
    return _as_ours(delta, request)


def error_of_answer(status: int, body: bytes, retry_after: str | None) -> TriptychError:
    """The tree's error for a refusal: by its status, with vLLM's words."""
    try:
        detail = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        detail = {}
    return _error(status, detail, retry_after)


def info_of_models(body: bytes) -> ModelInfo:
    """What ``/v1/models`` says of the model: neither vocabulary, dtype nor device.

    Raises:
        UnavailableError: there is none, or none yet.
    """
    models = _decode(body, _Models).data
    if not models:
        raise UnavailableError("vLLM serves no model", retry_after_s=1)
    model = models[0]
    return ModelInfo(
        model=model.id,
        max_model_len=model.max_model_len,
        vocab_size=0,
        dtype="unknown",
        device="unknown",
        max_logprobs=_MAX_LOGPROBS,
    )


def _sampling_params(params: SamplingParams) -> dict[str, Any]:
    _check_known(params)
    given = {name: value for name in _SAME if (value := getattr(params, name)) is not None}
    if params.max_tokens is not None:
        given["max_tokens"] = max(params.max_tokens, 1)  # 0 is refused: the token is dropped
    if params.structured_outputs is not None:
        given["structured_outputs"] = msgspec.to_builtins(params.structured_outputs)
    return given | _logprobs_params(params)


def _check_known(params: SamplingParams) -> None:
    unknown = [] if params.logprobs_mode == "raw" else ["logprobs_mode"]
    unknown += ["bad_words"] if params.bad_words_token_ids else []
    if unknown:
        raise InvalidRequestError(
            f"{unknown[0]} is not available: generate is a vLLM server here", param=unknown[0]
        )


def _logprobs_params(params: SamplingParams) -> dict[str, Any]:
    """How many candidates to ask for, so that none is lost.

    vLLM cuts the sampled token and the best k together to k. One more than is wanted brings them
    all; an id that is listed twice counts as one more.
    """
    if params.logprob_token_ids:
        listed = [*params.logprob_token_ids, params.logprob_token_ids[0]]
        return {"logprob_token_ids": listed, "logprobs": len(listed)}
    if params.logprobs is None:
        return {}
    has_room = 0 < params.logprobs < _MAX_LOGPROBS
    return {"logprobs": params.logprobs + 1 if has_room else params.logprobs}


def _as_ours(delta: GenerateDelta, request: GenerateRequest) -> GenerateDelta:
    params = request.sampling_params
    choices = [_choice(choice, params) for choice in delta.choices]
    return msgspec.structs.replace(delta, request_id=request.request_id or "", choices=choices)


def _choice(choice: ChoiceDelta, params: SamplingParams) -> ChoiceDelta:
    if params.max_tokens == 0:
        return ChoiceDelta(index=choice.index, token_ids=[], finish_reason="length")
    stop_reason = choice.stop_reason
    if isinstance(stop_reason, int) and stop_reason not in params.stop_token_ids:
        stop_reason = None  # one of several EOS tokens
    return msgspec.structs.replace(
        choice, stop_reason=stop_reason, logprobs=_cut(choice.logprobs, params)
    )


def _cut(columns: Logprobs | None, params: SamplingParams) -> Logprobs | None:
    """The sampled token and the best ``logprobs``, without the one that was asked for besides.

    Listed ids have no rank: vLLM ranks them among themselves.
    """
    num_wanted = params.logprobs
    if columns is not None and params.logprob_token_ids:
        return msgspec.structs.replace(columns, ranks=[0] * len(columns.ranks))
    if columns is None or num_wanted is None or num_wanted < 1:
        return columns
    cut = Logprobs(counts=[], token_ids=[], logprobs=[], ranks=[])
    start = 0
    for count in columns.counts:
        is_among_best = 0 < columns.ranks[start] <= num_wanted
        end = start + min(count, num_wanted + (not is_among_best))
        cut.counts.append(end - start)
        cut.token_ids.extend(columns.token_ids[start:end])
        cut.logprobs.extend(columns.logprobs[start:end])
        cut.ranks.extend(columns.ranks[start:end])
        start += count
    return cut


def _error(status: Any, detail: dict[str, Any], retry_after: str | None) -> TriptychError:
    message = str(detail.get("message") or f"vLLM answered with status {status}")
    param = detail.get("param")
    if status in (400, 422):
        return InvalidRequestError(message, param=param if isinstance(param, str) else None)
    if status == 404 and param == "model":
        return ModelNotFoundError(message, param="model")
    if status == 413:
        return BodyTooLargeError(message)
    if status in (429, 503):
        kind = OverloadedError if status == 429 else UnavailableError
        return kind(message, retry_after_s=_seconds(retry_after))
    if status == 504:
        return DeadlineError(message)
    return InternalError(message)  # also a key or a flag that the operator forgot


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InternalError(f"vLLM's answer cannot be read: {error}") from error
