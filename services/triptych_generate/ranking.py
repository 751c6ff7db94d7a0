"""Best entries and true ranks of vocabulary rows; ties always go to the lower id."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from triptych_generate.native import Kernels

#: Width of the chunks whose maxima select where to look.
_CHUNK = 64


#: From more entries on, sorting beats the kernel's insertion.
_MOST_BY_KERNEL = 256


class Survey(NamedTuple):
    """What is known of vocabulary rows, the row's own entry first, then the best, best first.

    Attributes:
        ids: ``[rows, 1 + count]`` int64.
        values: log-softmax of them, in nats.
        ranks: 1 + how many entries are strictly greater.
        places: ``[rows]``: how many entries come before the own one in the order of the best.
        norms: ``[rows, 2]``: the top logit, and the log of the sum of exponents below it; an
            entry's log-softmax is ``(logit - norms[0]) - norms[1]``.
    """

    ids: Tensor
    values: Tensor
    ranks: Tensor
    places: Tensor
    norms: Tensor


def survey(logits: Tensor, own: Tensor, count: int, kernels: Kernels | None) -> Survey:
    """The survey of ``logits`` ``[rows, vocab]`` float32 with the ``count`` best of each row.

    A row's bits do not depend on the other rows, nor its values on ``count``.
    """
    if kernels is not None and count <= _MOST_BY_KERNEL:
        return Survey(*kernels.score(logits.contiguous(), own, count))
    best = best_ids(logits, count) if count else own.new_empty(len(own), 0)
    ids = torch.cat([own[:, None], best], dim=1)
    chosen = logits.gather(1, ids)
    level_before = (logits == chosen[:, :1]) & (
        torch.arange(logits.shape[1], device=own.device) < own[:, None]
    )
    own_ranks = (logits > chosen[:, :1]).sum(-1, keepdim=True) + 1
    # All greater entries of the vocabulary are among the best, so counting there is enough.
    best_ranks = torch.searchsorted(-chosen[:, 1:].contiguous(), -chosen[:, 1:].contiguous()) + 1
    norms = _norms(logits, kernels)
    return Survey(
        ids,
        values_of(chosen, norms),
        torch.cat([own_ranks, best_ranks], dim=1),
        own_ranks[:, 0] - 1 + level_before.sum(-1),
        norms,
    )


def values_of(logits: Tensor, norms: Tensor) -> Tensor:
    """Log-softmax of some of each row's ``logits`` ``[rows, some]``."""
    return (logits - norms[:, :1]) - norms[:, 1:]


def _norms(logits: Tensor, kernels: Kernels | None) -> Tensor:
    if kernels is not None:
        first = torch.zeros(len(logits), dtype=torch.long)
        return kernels.score(logits.contiguous(), first, 0)[4]
    # log_softmax sums a row the same way in every batch; logsumexp does not (measured).
    log_total = -torch.log_softmax(logits, dim=-1).amax(-1)
    return torch.stack([logits.amax(-1), log_total], dim=1)


def best_ids(values: Tensor, num_best: int) -> Tensor:
    """``[rows, num_best]`` ids of the greatest of ``values`` ``[rows, vocab]``, best first.

    Exact: an entry among the best lies in one of the ``num_best`` chunks that come first by
    maximum (ties: lower chunk), because each of those holds an entry that comes before any entry
    of the chunks left out.
    """
    rows, vocab = values.shape
    num_chunks = -(-vocab // _CHUNK)
    if num_best >= num_chunks:
        return _first_by_value(values, num_best)
    padding = num_chunks * _CHUNK - vocab
    padded = nn.functional.pad(values, (0, padding), value=float("-inf")) if padding else values
    chunks = padded.reshape(rows, num_chunks, _CHUNK)
    chosen = _first_by_value(chunks.amax(-1), num_best).sort(dim=-1).values
    inside = chunks.gather(1, chosen[:, :, None].expand(-1, -1, _CHUNK)).flatten(1)
    ids = (chosen[:, :, None] * _CHUNK + torch.arange(_CHUNK, device=values.device)).flatten(1)
    return ids.gather(1, _first_by_value(inside, num_best))


def ranks_of(row: Tensor, values: Tensor) -> Tensor:
    """1 + how many entries of ``row`` ``[vocab]`` are strictly greater, for each of ``values``."""
    ordered, places = values.sort()
    above = torch.bucketize(row, ordered)  # how many of the values each entry is greater than
    counts = torch.bincount(above, minlength=len(values) + 1)
    greater = counts.flip(0).cumsum(0).flip(0)[1:]
    ranks = torch.empty_like(greater)
    ranks[places] = greater + 1
    return ranks


def _first_by_value(values: Tensor, count: int) -> Tensor:
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
