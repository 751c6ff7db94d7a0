"""Refusals of answers that cannot be derendered, with the limit and the value."""

from collections.abc import Sequence

from triptych.errors import InvalidRequestError
from triptych.logprobs import Logprobs
from triptych.reply import ReplySpec, stop_strings
from triptych.response_template import ResponseFamily
from triptych.wire import ChoiceDelta

#: Most choices of a prompt; each costs memory before its first token.
MAX_CHOICES = 1024


def check_spec(spec: ReplySpec, fingerprint: str, family: ResponseFamily | None) -> None:
    """Refuse a spec that cannot be served here."""
    if not 1 <= spec.n <= MAX_CHOICES:
        raise InvalidRequestError(f"n is {spec.n}, it must be 1 to {MAX_CHOICES:,}", param="n")
    stop_strings(spec.stop)
    if spec.tokenizer_fingerprint not in (None, fingerprint):
        raise InvalidRequestError(
            f"the request was rendered with tokenizer {spec.tokenizer_fingerprint}, "
            f"this derender has {fingerprint}",
            param="tokenizer_fingerprint",
        )
    name = "none" if family is None else family.name
    if spec.endpoint == "chat" and spec.response_template not in (None, name):
        raise InvalidRequestError(
            f"the request was rendered with response template {spec.response_template}, "
            f"this derender has {name}",
            param="response_template",
        )


def check_choices(choices: Sequence[ChoiceDelta], n: int = MAX_CHOICES) -> None:
    """Refuse choice numbers of ``n`` and more, and logprobs that do not belong to the token ids."""
    for number, choice in enumerate(choices):
        if not 0 <= choice.index < n:
            param = f"choices[{number}].index"
            raise InvalidRequestError(
                f"{param} is {choice.index}, it must be below {n:,}", param=param
            )
        if choice.logprobs is not None:
            _check_logprobs(choice.token_ids, choice.logprobs, number)


def check_distinct(choices: Sequence[ChoiceDelta]) -> None:
    """Refuse a whole answer that has a choice twice."""
    indexes = [choice.index for choice in choices]
    for number, index in enumerate(indexes):
        if index in indexes[:number]:
            raise InvalidRequestError(
                f"choices[{number}].index is {index}, as in an earlier choice",
                param=f"choices[{number}].index",
            )


def check_prompt(token_ids: list[int] | None, logprobs: Logprobs | None) -> None:
    """Refuse prompt logprobs of another number of positions than the prompt has ids."""
    if token_ids is not None and logprobs is not None and len(logprobs) != len(token_ids):
        raise InvalidRequestError(
            f"prompt_logprobs has {len(logprobs)} positions, prompt_token_ids {len(token_ids)}",
            param="prompt_logprobs",
        )


def check_output_len(
    choices: Sequence[ChoiceDelta], max_model_len: int | None, *, path: str = "choices"
) -> None:
    """Refuse more token ids than the model's context holds."""
    for number, choice in enumerate(choices):
        if max_model_len is not None and len(choice.token_ids) > max_model_len:
            param = f"{path}[{number}].token_ids"
            raise InvalidRequestError(
                f"{param} has {len(choice.token_ids):,} ids, limit is {max_model_len:,} "
                f"(max_model_len)",
                param=param,
            )


def check_candidate_counts(logprobs: Logprobs | None, limit: int | None, *, path: str) -> None:
    """Refuse positions with more candidates than ``limit``, the sampled token included."""
    if logprobs is None or limit is None or not logprobs.counts:
        return
    most = max(logprobs.counts)
    if most > limit:
        param = f"{path}[{logprobs.counts.index(most)}]"
        raise InvalidRequestError(
            f"{param} has {most} candidates, limit is {limit} (max_logprobs, or the number of "
            f"allowed_token_ids or logprob_token_ids, and the sampled token)",
            param=param,
        )


def _check_logprobs(token_ids: list[int], logprobs: Logprobs, number: int) -> None:
    if len(logprobs.counts) != len(token_ids):
        raise InvalidRequestError(
            f"choices[{number}].logprobs has {len(logprobs)} positions, "
            f"choices[{number}].token_ids {len(token_ids)} ids",
            param=f"choices[{number}].logprobs",
        )
    start = 0
    for position, count in enumerate(logprobs.counts):
        if not count or logprobs.token_ids[start] != token_ids[position]:
            scored = logprobs.token_ids[start] if count else "nothing"
            raise InvalidRequestError(
                f"choices[{number}].logprobs at position {position} scores {scored}, "
                f"choices[{number}].token_ids[{position}] is {token_ids[position]}",
                param=f"choices[{number}].logprobs",
            )
        start += count
