"""Best entries and true ranks of vocabulary rows; ties always go to the lower id."""

import torch
from torch import Tensor, nn

#: Width of the chunks whose maxima select where to look.
_CHUNK = 64


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
