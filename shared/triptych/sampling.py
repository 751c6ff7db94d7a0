"""Bounds of sampling parameters and prompts: one check for render and for generate's door."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.structured import check_structured
from triptych.wire import MAX_TOKEN_ID, GenerateRequest, SamplingParams

#: Most entries of ``logprob_token_ids`` (logprobs.md, section 1).
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_SEED = 2**63 - 1
MAX_LOGIT_BIAS = 100
#: All tokens are equally likely long before; above float32's range the division would give NaN.
MAX_TEMPERATURE = 1_000_000
#: A repetition penalty far from 1 leaves float32's range.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.001, 1000


class Range(NamedTuple):
    """What a number may be: from ``least`` (without it, where ``is_open``) to ``most``."""

    least: float
    most: float
    wanted: str
    is_open: bool = False

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.is_open and value == self.least)


#: Bounds that no deployment changes; the OpenAPI documents show them.
RANGES: Mapping[str, Range] = {
    "temperature": Range(0, MAX_TEMPERATURE, f"0 or more, at most {MAX_TEMPERATURE:,}"),
    "top_p": Range(0, 1, "in (0, 1]", is_open=True),
    "top_k": Range(-1, math.inf, "0 or -1 (off), or at least 1"),
    "min_p": Range(0, 1, "in [0, 1]"),
    "presence_penalty": Range(-2, 2, "in [-2, 2]"),
    "frequency_penalty": Range(-2, 2, "in [-2, 2]"),
    "repetition_penalty": Range(
        MIN_REPETITION_PENALTY,
        MAX_REPETITION_PENALTY,
        f"in [{MIN_REPETITION_PENALTY}, {MAX_REPETITION_PENALTY}]",
    ),
    "seed": Range(-MAX_SEED - 1, MAX_SEED, "a 64-bit integer"),
    "max_tokens": Range(0, math.inf, "0 or more"),
    "min_tokens": Range(0, math.inf, "0 or more"),
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment allows. ``max_logprobs`` -1 allows the whole vocabulary."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int = 20
    max_n: int = 64


def check_request(request: GenerateRequest, limits: Limits) -> None:
    """Refuse what generate cannot serve, with the limit and the value.

    Raises:
        InvalidRequestError: a parameter out of its range, a token id outside the vocabulary.
        ContextLengthError: no room for the prompt.
    """
    params = request.sampling_params
    check_sampling(params, limits)
    last = limits.max_n - params.n
    if not 0 <= request.choice_index <= last:
        _refuse_field(
            "choice_index", request.choice_index, f"between 0 and {last} when n is {params.n}"
        )
    most = max(len(request.token_ids) - 1, 0)
    if not 0 <= request.resume_from <= most:
        _refuse_field("resume_from", request.resume_from, f"between 0 and {most}")
    check_prompt(request.token_ids[: request.prompt_len], params, limits)
    if params.structured_outputs and not request.tokenizer_fingerprint:
        raise InvalidRequestError(
            "structured_outputs needs tokenizer_fingerprint: which tokenizer's ids these are",
            param="tokenizer_fingerprint",
        )
    if request.resume_from:
        _check_resumed(request, limits)


def _check_resumed(request: GenerateRequest, limits: Limits) -> None:
    """The output that a resumed request brings: as much as one choice can have had, or less."""
    params, num_output = request.sampling_params, request.resume_from
    if params.n > 1:
        raise InvalidRequestError(
            f"resume_from continues one choice, but n is {params.n}; send a request for each, "
            f"with its choice_index",
            param="resume_from",
        )
    if params.max_tokens is not None and num_output > params.max_tokens:
        _refuse_field(
            "resume_from", num_output, f"at most max_tokens, which is {params.max_tokens}"
        )
    if len(request.token_ids) > limits.max_model_len:
        raise ContextLengthError(
            f"prompt and output have {len(request.token_ids):,} tokens, "
            f"limit is {limits.max_model_len:,}",
            param="token_ids",
        )
    _check_ids("token_ids", request.token_ids, limits)


def check_prompt(token_ids: list[int], params: SamplingParams, limits: Limits) -> None:
    """Refuse an empty prompt, ids outside the vocabulary, and prompts that leave no room."""
    if not token_ids:
        raise InvalidRequestError("token_ids is empty; at least 1 is needed", param="token_ids")
    room = limits.max_model_len - (0 if params.max_tokens == 0 else 1)
    if len(token_ids) > room:
        raise ContextLengthError(
            f"prompt has {len(token_ids):,} tokens, limit is {room:,} "
            f"(context {limits.max_model_len:,}, at least "
            f"{limits.max_model_len - room} for output)",
            param="token_ids",
        )
    _check_ids("token_ids", token_ids, limits)


def check_sampling(params: SamplingParams, limits: Limits) -> None:
    """Refuse sampling parameters out of their ranges or that need a tokenizer."""
    _check_text_free(params)
    _check_ranges(params, limits)
    _check_counts(params, limits)
    _check_id_lists(params, limits)
    if params.structured_outputs is not None:
        check_structured(params.structured_outputs, "sampling_params.structured_outputs")


def _check_text_free(params: SamplingParams) -> None:
    for name in ("stop", "bad_words"):
        if getattr(params, name):
            raise InvalidRequestError(
                f"{name} needs text, and generate has no tokenizer: stop strings are matched by "
                f"derender (send it the request), other text is turned into ids by render",
                param=f"sampling_params.{name}",
            )


def _check_ranges(params: SamplingParams, limits: Limits) -> None:
    p = params
    if not 1 <= p.n <= limits.max_n:
        _refuse("n", p.n, f"between 1 and {limits.max_n}")
    for name, allowed in RANGES.items():
        value: float | None = getattr(p, name)
        if value is not None and not allowed.holds(value):
            _refuse(name, value, allowed.wanted)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        _refuse("min_tokens", p.min_tokens, f"at most max_tokens, which is {p.max_tokens}")


def _check_counts(params: SamplingParams, limits: Limits) -> None:
    num_allowed = len(params.allowed_token_ids or ())
    for name in ("logprobs", "prompt_logprobs"):
        asked: int | None = getattr(params, name)
        if asked is None:
            continue
        if asked < -1:
            _refuse(name, asked, "0 or more, or -1 for the whole vocabulary")
        if limits.max_logprobs == -1:
            continue
        most = limits.max_logprobs
        if name == "logprobs":
            most = max(most, num_allowed)
        if asked == -1 and limits.vocab_size > most:
            _refuse(name, f"-1, the whole vocabulary of {limits.vocab_size:,}", f"at most {most}")
        if asked > most:
            _refuse(name, asked, f"at most {most}")


def _check_id_lists(params: SamplingParams, limits: Limits) -> None:
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        _refuse("allowed_token_ids", [], "null or a list with at least 1 id")
    bounded = (
        ("allowed_token_ids", params.allowed_token_ids, limits.vocab_size),
        ("logprob_token_ids", params.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS),
        ("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("logit_bias", list(params.logit_bias or ()), limits.vocab_size),
    )
    for name, ids, most in bounded:
        _check_list(name, ids or [], most, limits)
    for token_id, bias in (params.logit_bias or {}).items():
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            _refuse(
                f"logit_bias.{token_id}", bias, f"between -{MAX_LOGIT_BIAS} and {MAX_LOGIT_BIAS}"
            )
    words = params.bad_words_token_ids or []
    if len(words) > MAX_BAD_WORDS:
        _refuse("bad_words_token_ids", f"{len(words):,} entries", f"at most {MAX_BAD_WORDS:,}")
    for word in words:
        if not word:
            _refuse("bad_words_token_ids", word, "lists with at least 1 id each")
        _check_list("bad_words_token_ids", word, limits.max_model_len, limits)


def _check_list(name: str, ids: list[int], most: int, limits: Limits) -> None:
    if len(ids) > most:
        _refuse(name, f"{len(ids):,} entries", f"at most {most:,}")
    _check_ids(f"sampling_params.{name}", ids, limits)


def _check_ids(param: str, ids: list[int], limits: Limits) -> None:
    if not ids:
        return
    low, high = min(ids), max(ids)
    worst = low if low < 0 else high
    if low < 0 or high >= min(limits.vocab_size, MAX_TOKEN_ID):
        raise InvalidRequestError(
            f"{param}[{ids.index(worst)}] is {worst}; token ids are between 0 and "
            f"{limits.vocab_size - 1} here",
            param=param,
        )


def _refuse(name: str, value: object, wanted: str) -> None:
    raise InvalidRequestError(
        f"{name} is {value}; it must be {wanted}", param=f"sampling_params.{name}"
    )


def _refuse_field(name: str, value: object, wanted: str) -> None:
    raise InvalidRequestError(f"{name} is {value}; it must be {wanted}", param=name)
