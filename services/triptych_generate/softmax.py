"""A softmax over keys in blocks, whose bits do not depend on how many blocks there are.

The row's true maximum is taken first; each block is summed on its own, and block results are added
in order, in float32. A masked key's weight is an exact zero, so blocks without a visible key add
nothing.
"""

import torch
from torch import Tensor, nn

from triptych_generate.attention import Scoring

#: Products have the same bits for every multiple of this many rows (measured), never for others.
ROWS = 4
_HIDDEN = float("-inf")


def scale_queries(query: Tensor, scoring: Scoring) -> Tensor:
    return query.float() * scoring.scaling


def cap_scores(scores: Tensor, scoring: Scoring) -> Tensor:
    """Soft-capped in place, where the layer does so."""
    if scoring.softcap is not None:
        scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    return scores


def softmax_parts(scores: Tensor, *, block_dim: int, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights before division, in the memory of ``scores``, and their sums over all blocks.

    The last dimension of ``scores`` is a block's keys. ``sinks`` and the result's second part have
    size 1 there, and the second part lacks ``block_dim``.
    """
    top = scores.amax((block_dim, -1), keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    weights = scores.sub_(top).exp_()
    sums = weights.sum(-1, keepdim=True)
    total = sums.new_zeros(()) if sinks is None else (sinks - top).exp_().squeeze(block_dim)
    for index in range(sums.shape[block_dim]):
        total = total + sums.select(block_dim, index)
    return weights, total


def mask_of(distance: Tensor, window: int | None) -> Tensor:
    """0 where a key ``distance`` tokens before its query is visible, else -inf."""
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return torch.zeros_like(distance, dtype=torch.float32).masked_fill_(hidden, _HIDDEN)


def first_visible(position: int, window: int | None) -> int:
    """The earliest position that a query at ``position`` sees."""
    return 0 if window is None else max(0, position - window + 1)


def pad_rows(rows: Tensor) -> Tensor:
    """``rows`` ``[…, rows, dim]`` with zero rows up to a multiple of ``ROWS``."""
    missing = -rows.shape[-2] % ROWS
    return nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
