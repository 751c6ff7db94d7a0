"""Paged attention by the compiled CPU kernel, for all rows of a step in one call per layer."""

import torch
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.kv_cache import KvCache
from triptych_generate.native import Kernels

#: Query tokens of a chunk that meet a block together, while it is in the first-level cache.
TILE_ROWS = 16
#: The kernel reads keys and values of a block in vectors of this many.
_LANES = 16


class NativeStep:
    """One step's rows as the kernel takes them, decodes and chunks alike."""

    def __init__(
        self,
        kernels: Kernels,
        cache: KvCache,
        *,
        slots: list[int],
        tables: list[list[int]],
        tiles: list[tuple[int, int, int, int]],
        kept_rows: Tensor | None = None,
    ) -> None:
        """``slots``: ``block * block_size + offset`` of each row but padding; tiles: ``batch``."""
        width = max(map(len, tables), default=1)
        padded = [table + [0] * (width - len(table)) for table in tables]
        self.kept_rows = kept_rows
        self._kernels = kernels
        self._cache = cache
        self._slots = torch.tensor(slots, dtype=torch.int32)
        self._tables = torch.tensor(padded, dtype=torch.int32)
        self._tiles = torch.tensor(tiles, dtype=torch.int32)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        return self._kernels.attend(
            query,
            key,
            value,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._slots,
            self._tables,
            self._tiles,
            scoring.scaling,
            scoring.window or 0,
            scoring.softcap or 0.0,
            None if scoring.sinks is None else scoring.sinks.float(),
        )


def can_attend(cache: KvCache) -> bool:
    """Whether the kernel takes the shapes of ``cache``."""
    value_dims = [pool.shape[3] for pool in cache.values.values()]
    return all(size % _LANES == 0 for size in (cache.block_size, *value_dims))
