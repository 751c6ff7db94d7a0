"""Wire structs to protobuf and back; protobuf classes stop here and in the servicers and links."""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from triptych.convert_structured import structured_from_proto, structured_to_proto
from triptych.errors import InvalidRequestError
from triptych.logprobs import Logprobs
from triptych.reply import Rendered, ReplySpec
from triptych.v1 import derender_pb2, generate_pb2, render_pb2
from triptych.wire import (
    MAX_TOKEN_ID,
    ChoiceDelta,
    FinishReason,
    Generated,
    GenerateDelta,
    GenerateRequest,
    LogprobsMode,
    ModelInfo,
    SamplingParams,
    StreamOptions,
    WorkerLoad,
)

_FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
FINISH_TO_PROTO = {
    None: generate_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": generate_pb2.FINISH_REASON_STOP,
    "length": generate_pb2.FINISH_REASON_LENGTH,
    "abort": generate_pb2.FINISH_REASON_ABORT,
}
FINISH_FROM_PROTO: dict[int, FinishReason | None] = {
    number: name  # type: ignore[misc]  # the keys of the table above are the literals
    for name, number in FINISH_TO_PROTO.items()
}
_MODE_TO_PROTO = {
    "raw": generate_pb2.LOGPROBS_MODE_RAW,
    "processed": generate_pb2.LOGPROBS_MODE_PROCESSED,
}

#: Fields of SamplingParams with a proto field of the same name and a scalar value.
_SCALARS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
)
_ID_LISTS = ("allowed_token_ids", "logprob_token_ids")


def sampling_to_proto(params: SamplingParams) -> generate_pb2.SamplingParams:
    """The message of ``params``.

    Raises:
        InvalidRequestError: a value outside its wire type, or a parameter that needs a tokenizer.
    """
    for name in ("stop", "bad_words"):
        if getattr(params, name):
            raise InvalidRequestError(f"{name} is text and has no place on the generate wire")
    present: dict[str, Any] = {
        name: value for name in _SCALARS if (value := getattr(params, name)) is not None
    }
    try:
        for name in _ID_LISTS:
            if (ids := getattr(params, name)) is not None:
                present[name] = _token_ids(ids)
        return generate_pb2.SamplingParams(
            **present,
            ignore_eos=params.ignore_eos,
            stop_token_ids=params.stop_token_ids,
            logit_bias=params.logit_bias,
            bad_words=[_token_ids(word) for word in params.bad_words_token_ids or []],
            logprobs_mode=_MODE_TO_PROTO[params.logprobs_mode],
            structured_outputs=structured_to_proto(params.structured_outputs),
        )
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"sampling_params: {error}", param="sampling_params") from error


def sampling_from_proto(message: generate_pb2.SamplingParams) -> SamplingParams:
    given = {field.name for field, _ in message.ListFields()}
    present: dict[str, Any] = {name: getattr(message, name) for name in _SCALARS if name in given}
    for name in _ID_LISTS:
        if name in given:
            present[name] = list(getattr(message, name).ids)
    is_processed = message.logprobs_mode == generate_pb2.LOGPROBS_MODE_PROCESSED
    mode: LogprobsMode = "processed" if is_processed else "raw"
    return SamplingParams(
        **present,
        ignore_eos=message.ignore_eos,
        stop_token_ids=list(message.stop_token_ids),
        logit_bias=dict(message.logit_bias) or None,
        bad_words_token_ids=[list(word.ids) for word in message.bad_words] or None,
        logprobs_mode=mode,
        structured_outputs=(
            structured_from_proto(message.structured_outputs)
            if message.HasField("structured_outputs")
            else None
        ),
    )


def request_to_proto(request: GenerateRequest) -> generate_pb2.GenerateRequest:
    """The message of ``request``.

    Raises:
        InvalidRequestError: a token id or parameter outside its wire type.
    """
    _check_uint(request.token_ids)
    sampling_params = sampling_to_proto(request.sampling_params)
    try:
        return generate_pb2.GenerateRequest(
            token_ids=request.token_ids,
            sampling_params=sampling_params,
            request_id=request.request_id or "",
            model=request.model or "",
            cache_salt=request.cache_salt,
            priority=request.priority,
            resume_from=request.resume_from,
            choice_index=request.choice_index,
            tokenizer_fingerprint=request.tokenizer_fingerprint or "",
        )
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"the request has no place on the wire: {error}") from error


def request_from_proto(message: generate_pb2.GenerateRequest) -> GenerateRequest:
    return GenerateRequest(
        token_ids=list(message.token_ids),
        sampling_params=sampling_from_proto(message.sampling_params),
        request_id=message.request_id or None,
        model=message.model or None,
        stream=True,
        cache_salt=message.cache_salt if message.HasField("cache_salt") else None,
        priority=message.priority,
        resume_from=message.resume_from,
        choice_index=message.choice_index,
        tokenizer_fingerprint=message.tokenizer_fingerprint or None,
    )


def logprobs_to_proto(columns: Logprobs | None) -> generate_pb2.Logprobs | None:
    if columns is None:
        return None
    return generate_pb2.Logprobs(
        counts=columns.counts,
        token_ids=columns.token_ids,
        logprobs=columns.logprobs,
        ranks=columns.ranks,
    )


def logprobs_from_proto(message: generate_pb2.Logprobs) -> Logprobs:
    """Columns of ``message``; their lengths are checked, since a stranger may have sent them."""
    columns = Logprobs(
        counts=message.counts[:],  # a slice is a list, and made in half the time
        token_ids=message.token_ids[:],
        logprobs=message.logprobs[:],
        ranks=message.ranks[:],
    )
    total = sum(columns.counts)
    if not total == len(columns.token_ids) == len(columns.logprobs) == len(columns.ranks):
        raise InvalidRequestError(
            f"logprobs columns do not fit: counts add up to {total}, and there are "
            f"{len(columns.token_ids)} token_ids, {len(columns.logprobs)} logprobs and "
            f"{len(columns.ranks)} ranks"
        )
    return columns


def choice_to_proto(choice: ChoiceDelta) -> generate_pb2.ChoiceDelta:
    message = generate_pb2.ChoiceDelta(
        index=choice.index,
        token_ids=choice.token_ids,
        logprobs=logprobs_to_proto(choice.logprobs),
        finish_reason=FINISH_TO_PROTO[choice.finish_reason],
    )
    if isinstance(choice.stop_reason, str):
        message.stop_string = choice.stop_reason
    elif choice.stop_reason is not None:
        message.stop_token_id = choice.stop_reason
    return message


def choice_from_proto(message: generate_pb2.ChoiceDelta) -> ChoiceDelta:
    kind = message.WhichOneof("stop_reason")
    return ChoiceDelta(
        index=message.index,
        token_ids=list(message.token_ids),
        logprobs=logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else None,
        finish_reason=FINISH_FROM_PROTO.get(message.finish_reason),
        stop_reason=getattr(message, kind) if kind else None,
    )


def delta_to_proto(delta: GenerateDelta) -> generate_pb2.GenerateDelta:
    return generate_pb2.GenerateDelta(
        request_id=delta.request_id,
        choices=[choice_to_proto(choice) for choice in delta.choices],
        prompt_logprobs=logprobs_to_proto(delta.prompt_logprobs),
        cached_tokens=delta.cached_tokens,
    )


def delta_from_proto(message: generate_pb2.GenerateDelta) -> GenerateDelta:
    return GenerateDelta(
        request_id=message.request_id,
        choices=[choice_from_proto(choice) for choice in message.choices],
        prompt_logprobs=(
            logprobs_from_proto(message.prompt_logprobs)
            if message.HasField("prompt_logprobs")
            else None
        ),
        cached_tokens=message.cached_tokens,
    )


def info_to_proto(info: ModelInfo) -> generate_pb2.GetInfoResponse:
    load = None if info.load is None else msgspec.structs.asdict(info.load)
    fields = {**msgspec.structs.asdict(info), "load": load}
    return generate_pb2.GetInfoResponse(**fields)


def info_from_proto(message: generate_pb2.GetInfoResponse) -> ModelInfo:
    return ModelInfo(
        model=message.model,
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
        dtype=message.dtype,
        device=message.device,
        max_logprobs=message.max_logprobs,
        invariant=message.invariant if message.HasField("invariant") else None,
        load=_load_from_proto(message.load) if message.HasField("load") else None,
        can_resume=message.can_resume,
        version=message.version,
    )


def _load_from_proto(load: generate_pb2.WorkerLoad) -> WorkerLoad:
    return WorkerLoad(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_free_blocks=load.num_free_blocks,
        num_blocks=load.num_blocks,
        num_steps=load.num_steps,
    )


def rendered_to_proto(rendered: Rendered) -> render_pb2.RenderResponse:
    return render_pb2.RenderResponse(
        requests=[request_to_proto(request) for request in rendered.requests],
        reply_spec=msgspec.json.encode(rendered.spec),
        stream=rendered.spec.stream,
    )


def rendered_from_proto(message: render_pb2.RenderResponse) -> Rendered:
    spec = spec_from_bytes(message.reply_spec)
    options = StreamOptions(
        include_usage=spec.include_usage, continuous_usage_stats=spec.continuous_usage_stats
    )
    requests = [
        msgspec.structs.replace(
            request_from_proto(request), stream=spec.stream, stream_options=options
        )
        for request in message.requests
    ]
    return Rendered(requests=requests, spec=spec)


def spec_from_bytes(encoded: bytes) -> ReplySpec:
    try:
        return msgspec.json.decode(encoded, type=ReplySpec)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"reply_spec: {error}", param="reply_spec") from error


def answer_to_proto(answer: Generated) -> derender_pb2.GenerateAnswer:
    return derender_pb2.GenerateAnswer(
        choices=[choice_to_proto(choice) for choice in answer.choices],
        prompt_logprobs=logprobs_to_proto(answer.prompt_logprobs),
        prompt_token_ids=answer.prompt_token_ids,
        cached_tokens=answer.cached_tokens,
    )


def answer_from_proto(
    message: derender_pb2.GenerateAnswer, *, request_id: str, model: str, created: int
) -> Generated:
    return Generated(
        request_id=request_id,
        model=model,
        created=created,
        prompt_tokens=len(message.prompt_token_ids),
        choices=[choice_from_proto(choice) for choice in message.choices],
        prompt_logprobs=(
            logprobs_from_proto(message.prompt_logprobs)
            if message.HasField("prompt_logprobs")
            else None
        ),
        prompt_token_ids=list(message.prompt_token_ids),
        cached_tokens=message.cached_tokens,
    )


def _token_ids(ids: Iterable[int]) -> generate_pb2.TokenIds:
    return generate_pb2.TokenIds(ids=ids)


def _check_uint(token_ids: list[Any]) -> None:
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= MAX_TOKEN_ID:
        bad = next(i for i, value in enumerate(token_ids) if not 0 <= value <= MAX_TOKEN_ID)
        raise InvalidRequestError(
            f"token_ids[{bad}] is {token_ids[bad]}; token ids are between 0 and {MAX_TOKEN_ID}",
            param="token_ids",
        )
