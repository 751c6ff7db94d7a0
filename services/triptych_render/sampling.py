"""OpenAI's sampling fields to the integer-only parameters of the generate wire.

Every bound is ``triptych.sampling``'s; this module names it in the words of the OpenAI request.
Sampling defaults of the model's generation_config.json are not applied: what a request leaves out
is OpenAI's default.
"""

from collections.abc import Mapping

import msgspec

from triptych.errors import InvalidRequestError
from triptych.reply import check_lengths, completion_logprobs, stop_strings
from triptych.sampling import MAX_BAD_WORDS, MAX_LOGIT_BIAS, Limits, check_prompt, check_sampling
from triptych.wire import SamplingParams
from triptych_render.chat_request import ChatRequest
from triptych_render.completion_request import CompletionRequest
from triptych_render.encoder import Encoder
from triptych_render.shared_fields import SharedFields
from triptych_render.structured_fields import structured_outputs

#: OpenAI's default for completions; chat takes the context that is left.
DEFAULT_COMPLETION_TOKENS = 16

#: Fields that the request and the wire have under one name.
_SAME_NAMES = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "allowed_token_ids",
    "logprob_token_ids",
    "logprobs_mode",
)


def chat_sampling(request: ChatRequest, limits: Limits, encoder: Encoder) -> SamplingParams:
    """The parameters of a chat request; ``max_tokens`` None means the context that is left.

    Raises:
        InvalidRequestError: out of bounds; ``param`` is the request's field.
    """
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError(
            f"top_logprobs is {request.top_logprobs}, but logprobs is not true",
            param="top_logprobs",
        )
    for name in ("max_tokens", "max_completion_tokens"):
        _check_max_tokens(name, getattr(request, name), 1, limits)
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(request, name)
    return _sampling(
        request,
        limits,
        encoder,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        names={"logprobs": "top_logprobs", "max_tokens": name},
    )


def completion_sampling(
    request: CompletionRequest, limits: Limits, encoder: Encoder
) -> SamplingParams:
    """The parameters of a completions request. ``echo`` with logprobs scores the prompt too.

    Raises:
        InvalidRequestError: out of bounds; ``param`` is the request's field.
    """
    if request.top_logprobs and request.logprobs is not True:
        raise InvalidRequestError(
            f"top_logprobs is {request.top_logprobs}, but logprobs is not true; "
            f"without top_logprobs, logprobs may be a number",
            param="top_logprobs",
        )
    if request.best_of is not None and request.best_of != request.n:
        raise InvalidRequestError(
            f"best_of is {request.best_of}; only the value of n, {request.n}, is served here",
            param="best_of",
        )
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = min(DEFAULT_COMPLETION_TOKENS, limits.max_model_len)
    _check_max_tokens("max_tokens", max_tokens, 0 if request.echo else 1, limits)
    logprobs = completion_logprobs(request.logprobs, request.top_logprobs)
    prompt_logprobs = request.prompt_logprobs
    if request.echo and prompt_logprobs is None:
        prompt_logprobs = logprobs
    return _sampling(
        request,
        limits,
        encoder,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        names={"logprobs": "top_logprobs" if request.logprobs is True else "logprobs"},
    )


def fit_to_prompt(
    params: SamplingParams, token_ids: list[int], limits: Limits, *, path: str
) -> SamplingParams:
    """``params`` with ``max_tokens`` cut to the context that the prompt leaves.

    Raises:
        InvalidRequestError: an id outside the vocabulary, or fewer tokens left than ``min_tokens``.
        ContextLengthError: no room for the prompt.
    """
    try:
        check_prompt(token_ids, params, limits)
    except InvalidRequestError as error:
        raise _in_request_words(error, {"token_ids": path}) from error
    room = limits.max_model_len - len(token_ids)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if params.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {params.min_tokens:,}; the prompt of {len(token_ids):,} tokens leaves "
            f"room for {max_tokens:,}",
            param="min_tokens",
        )
    return msgspec.structs.replace(params, max_tokens=max_tokens)


def _sampling(
    request: SharedFields,
    limits: Limits,
    encoder: Encoder,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    names: Mapping[str, str],
) -> SamplingParams:
    stop_strings(request.stop)  # bounds only: derender matches them
    params = SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(request.logit_bias),
        bad_words_token_ids=_bad_words(request.bad_words, encoder),
        structured_outputs=structured_outputs(request),
        **{name: getattr(request, name) for name in _SAME_NAMES},
    )
    try:
        check_sampling(params, limits)
    except InvalidRequestError as error:
        raise _in_request_words(error, {"bad_words_token_ids": "bad_words", **names}) from error
    return params


def _check_max_tokens(name: str, max_tokens: int | None, least: int, limits: Limits) -> None:
    if max_tokens is None:
        return
    if max_tokens < least:
        raise InvalidRequestError(
            f"{name} is {max_tokens}; it must be at least {least}", param=name
        )
    if max_tokens > limits.max_model_len:
        raise InvalidRequestError(
            f"{name} is {max_tokens:,}; it must be at most the context, {limits.max_model_len:,}",
            param=name,
        )


def _logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    bias = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequestError(
                f"logit_bias has the key {key[:20]!r}; keys are token ids", param="logit_bias"
            )
        if not -MAX_LOGIT_BIAS <= value <= MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias.{key} is {value}; it must be between -{MAX_LOGIT_BIAS} and "
                f"{MAX_LOGIT_BIAS}",
                param=f"logit_bias.{key}",
            )
        bias[int(key)] = value
    return bias


def _bad_words(words: list[str], encoder: Encoder) -> list[list[int]] | None:
    """Each word's ids at the start of a text and after a space."""
    if not words:
        return None
    if len(words) > MAX_BAD_WORDS // 2:
        raise InvalidRequestError(
            f"bad_words has {len(words):,} words; at most {MAX_BAD_WORDS // 2} are allowed",
            param="bad_words",
        )
    check_lengths("bad_words", words)
    found: list[list[int]] = []
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise InvalidRequestError("bad_words has an empty word", param="bad_words")
        for text in (bare, " " + bare):
            ids = encoder.encode(text, add_special_tokens=False)
            if ids and ids not in found:
                found.append(ids)
    return found


def _in_request_words(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """``error`` with the wire's field name, which begins its message, made the request's."""
    wire_name = (error.param or "").removeprefix("sampling_params.")
    name = names.get(wire_name, wire_name)
    message = error.message.removeprefix("sampling_params.")
    if message.startswith(wire_name):
        message = name + message[len(wire_name) :]
    return type(error)(message, param=name)
