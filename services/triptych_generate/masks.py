"""What a request does to its logits before sampling: penalties, bias, forbidden ids, grammar."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.wire import SamplingParams
from triptych_generate.host_copies import ids_on
from triptych_generate.sequence import Sequence

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Draw:
    """One sequence's next token, as the sampler sees it. ``position`` counts output from 0.

    ``forbidden_ids`` cannot be sampled here: stop tokens before ``min_tokens``, last ids of bad
    words whose other ids end the sequence. ``grammar_mask``: ``[vocab]`` bool on the CPU, what the
    request's grammar allows; None where it has none.
    """

    params: SamplingParams
    prompt_ids: list[int]
    output_ids: list[int]
    seed: int
    choice_index: int
    forbidden_ids: list[int]
    grammar_mask: Tensor | None = None

    @property
    def position(self) -> int:
        return len(self.output_ids)

    @property
    def leaves_logits(self) -> bool:
        """Penalties, bias and masks are all off."""
        p = self.params
        return (
            p.repetition_penalty == 1
            and p.presence_penalty == 0
            and p.frequency_penalty == 0
            and not p.logit_bias
            and p.allowed_token_ids is None
            and not self.forbidden_ids
            and self.grammar_mask is None
        )


def draw_of(sequence: Sequence) -> Draw:
    """The draw of ``sequence``'s next token."""
    tokens, prompt_len = sequence.token_ids, sequence.prompt_len
    output_ids = tokens[prompt_len:]
    forbidden = sorted(sequence.stop_ids()) if sequence.must_not_stop else []
    grammar_mask = None
    if sequence.constraint is not None:
        grammar_mask = torch.from_numpy(sequence.constraint.allowed(output_ids))
    return Draw(
        params=sequence.params,
        prompt_ids=tokens[:prompt_len],
        output_ids=output_ids,
        seed=sequence.seed,
        choice_index=sequence.choice_index,
        forbidden_ids=forbidden + bad_word_ends(sequence.params, output_ids),
        grammar_mask=grammar_mask,
    )


def bad_word_ends(params: SamplingParams, output_ids: list[int]) -> list[int]:
    """Ids that would complete a bad word whose preceding ids end the output."""
    return [
        word[-1]
        for word in params.bad_words_token_ids or ()
        if len(word) == 1 or output_ids[1 - len(word) :] == word[:-1]
    ]


def adjust_logits(logits: Tensor, draw: Draw) -> Tensor:
    """A copy of ``logits`` ``[vocab]`` after penalties, bias and masks, in this order."""
    adjusted, device = logits.clone(), logits.device
    _apply_penalties(adjusted, draw)
    if draw.params.logit_bias:
        bias = np.fromiter(draw.params.logit_bias.values(), np.float32, len(draw.params.logit_bias))
        adjusted[ids_on(device, draw.params.logit_bias)] += torch.from_numpy(bias).to(device)
    if draw.params.allowed_token_ids is not None:
        allowed = ids_on(device, draw.params.allowed_token_ids)
        values = adjusted[allowed]
        adjusted.fill_(_NEVER)[allowed] = values
    if draw.forbidden_ids:
        adjusted[ids_on(device, draw.forbidden_ids)] = _NEVER
    if draw.grammar_mask is not None:
        adjusted.masked_fill_(~draw.grammar_mask.to(device), _NEVER)
    return adjusted


def _apply_penalties(logits: Tensor, draw: Draw) -> None:
    """Repetition over prompt and output (CTRL, Keskar et al. 2019); the others over output."""
    params = draw.params
    if params.repetition_penalty != 1:
        seen = ids_on(logits.device, {*draw.prompt_ids, *draw.output_ids})
        values, factor = logits[seen], params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    if draw.output_ids and (params.presence_penalty or params.frequency_penalty):
        output = ids_on(logits.device, draw.output_ids)
        ids, counts = torch.unique(output, return_counts=True)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * counts
