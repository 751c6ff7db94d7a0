"""Keys and values of all layers in blocks of fixed size."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token; layers of a model may differ."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim)


class KvCache:
    """Per layer: keys ``[blocks, kv_heads, key_dim, block_size]``, values ``[…, block_size, dim]``.

    Neighbouring blocks are one run of memory, so a sequence's products take them without a copy.
    Keys lie transposed because then ``query @ keys`` has the same bits for every multiple of 4
    rows; with row-major keys 4 and 8 rows gave others for heads of 96 and more (measured with
    MKL), and the product took twice as long.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        #: One block more than any sequence is given: padding rows may store there.
        self.trash_block = num_blocks
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        for layer, shape in shapes.items():
            size = (num_blocks + 1, shape.num_kv_heads)
            options: dict[str, Any] = {"dtype": dtype, "device": device}
            self.keys[layer] = torch.zeros(*size, shape.key_dim, block_size, **options)
            self.values[layer] = torch.zeros(*size, block_size, shape.value_dim, **options)

    def clear(self, block_ids: list[int]) -> None:
        """Zero blocks that change their owner.

        Masked scores become exact zeros, but zero times a NaN that an earlier owner left is NaN.
        """
        for pools in (self.keys, self.values):
            for pool in pools.values():
                pool[block_ids] = 0

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, each from the first of a pair to the second, all read before."""
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        for pools in (self.keys, self.values):
            for pool in pools.values():
                pool[targets] = pool[sources]

    def write(
        self, layer: int, *, key: Tensor, value: Tensor, blocks: Tensor, offsets: Tensor
    ) -> None:
        """Store ``[kv_heads, tokens, dim]`` at one block and offset per token."""
        self.keys[layer][blocks, :, :, offsets] = key.transpose(0, 1)
        self.values[layer][blocks, :, offsets] = value.transpose(0, 1)


def block_bytes(shapes: dict[int, LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    per_token = sum(shape.elements_per_token for shape in shapes.values())
    return per_token * block_size * dtype.itemsize
