"""Paged attention in torch operators, for any device, dtype and shape.

Keys and values are met in blocks at absolute positions, by products of fixed inner shape; see
``softmax`` for why padding, other sequences and the cutting of a prefill change nothing.
"""

import torch
from torch import Tensor

from triptych_generate.attention import Scoring, StepLayout
from triptych_generate.decodes import DecodeGroup
from triptych_generate.kv_cache import KvCache
from triptych_generate.prefill import PrefillChunk


class TorchAttention:
    """Attention over ``cache``."""

    def __init__(self, cache: KvCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device

    def begin(self, layout: StepLayout) -> "TorchStep":
        if layout.new_blocks:
            self._cache.clear(layout.new_blocks)
        return TorchStep(self._cache, layout, self._device)


class TorchStep:
    """One step's rows as groups that one product each can take."""

    def __init__(self, cache: KvCache, layout: StepLayout, device: torch.device) -> None:
        slots = torch.tensor(layout.slots, device=device)
        decodes, chunks = layout.spans[: layout.num_decodes], layout.spans[layout.num_decodes :]
        self._cache = cache
        self._blocks, self._offsets = slots // cache.block_size, slots % cache.block_size
        self._decodes = DecodeGroup(
            [span.position for span in decodes],
            [layout.tables[span.table] for span in decodes],
            block_size=cache.block_size,
            device=device,
        )
        self._chunks = [
            PrefillChunk(
                first_row=span.first_row,
                num_tokens=span.num_rows,
                position=span.position,
                block_ids=layout.tables[span.table],
                block_size=cache.block_size,
                device=device,
            )
            for span in chunks
        ]

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
