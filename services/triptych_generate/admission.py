"""Turns an accepted request into the sequences that the engine runs."""

import secrets

from triptych.wire import ChoiceDelta, GenerateRequest
from triptych_generate.sequence import Sequence, finish_reason


def make_sequences(
    request: GenerateRequest,
    *,
    request_key: int,
    max_model_len: int,
    eos_token_ids: frozenset[int],
) -> list[Sequence]:
    """One sequence per choice. A request without a seed gets a random one here.

    Only choice 0 scores the prompt, and not when it is resumed: its scores were sent with its first
    output at the latest.
    """
    params = request.sampling_params
    prompt_len = request.prompt_len
    most = max_model_len if params.max_tokens is None else prompt_len + params.max_tokens
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return [
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
