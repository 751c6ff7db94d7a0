"""Paged attention in torch operators, for any device, dtype and shape.

Keys and values are met in blocks at absolute positions, by products of fixed inner shape; see
``softmax`` for why padding, other sequences and the cutting of a prefill change nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.batch import Layout
from triptych_generate.decodes import DecodeGroup
from triptych_generate.kv_cache import KvCache
from triptych_generate.prefill import PrefillChunk


class TorchStep:
    """One step's rows as groups that one product each can take: all decodes, and each chunk."""

    def __init__(self, cache: KvCache, layout: Layout, device: torch.device) -> None:
        decodes = [part.sequence for part in layout.slices if part.is_decode]
        self.kept_rows: Tensor | None = None
        self._cache = cache
        self._blocks = torch.tensor(layout.blocks, device=device)
        self._offsets = torch.tensor(layout.offsets, device=device)
        self._decodes = DecodeGroup(
            [sequence.num_computed for sequence in decodes],
            [sequence.block_ids for sequence in decodes],
            block_size=cache.block_size,
            device=device,
        )
        self._chunks = list(_chunks(layout, cache.block_size, device))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        num_rows, num_decodes = len(self._blocks), len(self._decodes)
        self._cache.write(
            layer,
            key=key[:, :num_rows],
            value=value[:, :num_rows],
            blocks=self._blocks,
            offsets=self._offsets,
        )
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        out = query.new_zeros(query.shape[1], query.shape[0], value.shape[2])
        if num_decodes:
            out[:num_decodes] = self._decodes.attend(keys, values, query[:, :num_decodes], scoring)
        for chunk in self._chunks:
            out[chunk.rows] = chunk.attend(keys, values, query[:, chunk.rows], scoring)
        return out


def _chunks(layout: Layout, block_size: int, device: torch.device) -> Iterator[PrefillChunk]:
    first_row = 0
    for part in layout.slices:
        if not part.is_decode:
            yield PrefillChunk(
                first_row=first_row,
                num_tokens=part.num_tokens,
                position=part.sequence.num_computed,
                block_ids=part.sequence.block_ids,
                block_size=block_size,
                device=device,
            )
        first_row += part.num_tokens
