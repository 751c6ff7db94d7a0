"""Chooses the next token of each sequence.

The order is penalties, bias, masks, temperature, top-k, top-p, min-p. Every function is pure: the
draw comes from ``draws``, and a row is worked on alone, so nothing depends on the batch. Rows that
are not simply greedy are drawn on the host: torch's running sums on CUDA are not deterministic.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.wire import SamplingParams
from triptych_generate.draws import draw_key, token_uniforms, uniform
from triptych_generate.host_copies import to_host
from triptych_generate.masks import Draw, adjust_logits
from triptych_generate.native import Kernels
from triptych_generate.ranking import best_ids

#: Below it the scaled logits leave float32's range; the choice is the greedy one long before.
_MIN_TEMPERATURE = 1e-6
#: How many candidates are looked at before the whole vocabulary is sorted.
_WIDTHS = (64, 1024)
_NEVER = float("-inf")


class NothingAllowedError(Exception):
    """Masks exclude every token."""


class BadLogitsError(Exception):
    """The model gave NaN or infinite logits."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token chosen for a row, or why there is none."""

    token_id: int | None
    error: NothingAllowedError | BadLogitsError | None = None


def sample(logits: Tensor, draws: list[Draw], kernels: Kernels | None = None) -> list[Sampled]:
    """One token per row of ``logits`` ``[rows, vocab]``, drawn in float32. Ties: the lower id."""
    top = logits.max(-1) if kernels is None else kernels.top(logits.contiguous())
    values, indices = to_host(*top)
    is_good, greedy_ids = values.isfinite().tolist(), indices.tolist()
    sampled = []
    for row, draw in enumerate(draws):
        if not is_good[row]:
            sampled.append(Sampled(None, BadLogitsError()))
        elif draw.params.temperature == 0 and draw.leaves_logits:
            sampled.append(Sampled(greedy_ids[row]))
        else:
            sampled.append(_sample_row(logits[row].float().cpu(), draw))
    return sampled


def processed_logits(logits: Tensor, draw: Draw) -> Tensor:
    """``[vocab]``: log-softmax of them is the distribution that the row is sampled from.

    A greedy row has no temperature: its distribution is the one after penalties, bias and masks.
    """
    adjusted = logits if draw.leaves_logits else adjust_logits(logits, draw)
    if draw.params.temperature == 0:
        return adjusted
    scaled = scale_logits(adjusted, draw.params.temperature)
    if not _truncates(draw.params):
        return scaled
    kept = kept_ids(scaled, draw.params)
    return torch.full_like(scaled, _NEVER).index_copy_(0, kept, scaled[kept])


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Logits over temperature, shifted so that the greatest is 0."""
    return (logits - logits.max()) / max(temperature, _MIN_TEMPERATURE)


def kept_ids(scaled: Tensor, params: SamplingParams) -> Tensor:
    """Ids that top-k, then top-p, then min-p keep, best first.

    top-p keeps the fewest best ids whose probability, among what top-k kept, reaches it. min-p
    keeps ids at least that fraction as probable as the best. Ties go to the lower id.
    """
    vocab = len(scaled)
    if 0 < params.top_k < vocab:
        ids = best_ids(scaled[None], params.top_k)[0]
        return ids[: _num_kept(scaled[ids], _running_mass(scaled[ids])[-1], params)]
    mass = _running_mass(scaled)[-1]
    for width in (*(width for width in _WIDTHS if width < vocab), vocab):
        ids = best_ids(scaled[None], width)[0]
        num_kept = _num_kept(scaled[ids], mass, params)
        if num_kept < width:
            break
    return ids[:num_kept]


def _sample_row(logits: Tensor, draw: Draw) -> Sampled:
    adjusted = logits if draw.leaves_logits else adjust_logits(logits, draw)
    if adjusted.max() == _NEVER:
        return Sampled(None, NothingAllowedError())
    if draw.params.temperature == 0:
        return Sampled(int(adjusted.argmax()))
    scaled = scale_logits(adjusted, draw.params.temperature)
    key = draw_key(draw.seed, draw.choice_index, draw.position)
    if _truncates(draw.params):
        kept = kept_ids(scaled, draw.params)
        return Sampled(_gumbel_choice(scaled[kept], kept, key))
    return Sampled(_inverse_cdf_choice(scaled, key))


def _truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _running_mass(scaled: Tensor) -> Tensor:
    """Running sums of ``exp(scaled)``.

    ``exp`` in float32 has the same bits wherever an entry lies (measured), and the sum is
    sequential, in float64: neither threads nor what follows an entry change it.
    """
    return scaled.exp().cumsum(0, dtype=torch.float64)


def _num_kept(values: Tensor, mass: Tensor, params: SamplingParams) -> int:
    """How many of ``values``, best first, top-p (of ``mass``) and min-p keep; at least 1."""
    num_kept = int((values > _NEVER).sum())
    if params.top_p < 1:
        num_short = int((_running_mass(values) < params.top_p * mass).sum())
        num_kept = min(num_kept, num_short + 1)
    if params.min_p > 0:
        num_kept = min(num_kept, int((values >= values[0] + math.log(params.min_p)).sum()))
    return max(num_kept, 1)


def _gumbel_choice(values: Tensor, token_ids: Tensor, key: int) -> int:
    """A draw from softmax(values): the greatest after Gumbel noise from each id's own number."""
    noise = -(-token_uniforms(key, token_ids).log()).log()
    return int(token_ids[(values.double() + noise).argmax()])


def _inverse_cdf_choice(scaled: Tensor, key: int) -> int:
    """A draw from softmax(scaled) over the whole vocabulary with one number."""
    cumulative = _running_mass(scaled)
    target = cumulative[-1] * uniform(key)
    return int(torch.searchsorted(cumulative, target, right=True).clamp(max=len(scaled) - 1))
