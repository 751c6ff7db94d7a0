"""Turns an accepted request into the sequences that the engine runs."""

import secrets
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.wire import ChoiceDelta, GenerateRequest
from triptych_generate.constraint import MAX_RESUME_S, Constraint
from triptych_generate.sequence import Sequence, finish_reason


def make_sequences(
    request: GenerateRequest,
    *,
    request_key: int,
    max_model_len: int,
    eos_token_ids: frozenset[int],
) -> list[Sequence]:
    """One sequence per choice. A request without a seed gets a random one here.

    Only choice 0 scores the prompt, and the others wait for it. It does not when it is resumed: its
    scores were sent with its first output at the latest.
    """
    params = request.sampling_params
    prompt_len = request.prompt_len
    most = max_model_len if params.max_tokens is None else prompt_len + params.max_tokens
    seed = secrets.randbits(63) if params.seed is None else params.seed
    sequences = [
        Sequence(
            request_key=request_key,
            choice_index=choice_index,
            token_ids=list(request.token_ids),
            prompt_len=prompt_len,
            max_len=min(most, max_model_len),
            params=params,
            seed=seed,
            eos_token_ids=eos_token_ids,
            priority=request.priority,
            cache_salt=request.cache_salt,
            scores_prompt=(
                params.prompt_logprobs is not None
                and choice_index == 0
                and request.resume_from == 0
            ),
        )
        for choice_index in range(request.choice_index, request.choice_index + params.n)
    ]
    if sequences[0].scores_prompt:
        for sequence in sequences[1:]:
            sequence.scorer = sequences[0]
    return sequences


def end_at_cut(sequence: Sequence) -> ChoiceDelta | None:
    """The end of a resumed sequence whose output was complete when it was cut; else None."""
    if not sequence.num_output:
        return None
    reason, stop_id = finish_reason(sequence)
    if reason is None:
        return None
    return ChoiceDelta(
        index=sequence.choice_index, token_ids=[], finish_reason=reason, stop_reason=stop_id
    )


def constrain(sequences: list[Sequence], compiled: Any, *, vocab_size: int) -> None:
    """Let each sequence follow a compiled grammar, from the output that it begins with.

    Raises:
        InvalidRequestError: that output does not fit the grammar, or takes too long to follow.
    """
    for sequence in sequences:
        constraint = Constraint(compiled, vocab_size=vocab_size, end_ids=sequence.stop_ids())
        position = constraint.follow(sequence.token_ids[sequence.prompt_len :])
        if position is not None:
            raise InvalidRequestError(
                f"the output to resume from does not fit structured_outputs at position "
                f"{position}: token {sequence.token_ids[sequence.prompt_len + position]}",
                param="token_ids",
            )
        if constraint.is_too_slow:
            raise InvalidRequestError(
                f"the output to resume from takes more than {MAX_RESUME_S:g} s to follow in "
                f"structured_outputs, the limit; the grammar is too ambiguous",
                param="sampling_params.structured_outputs",
            )
        sequence.constraint = constraint
