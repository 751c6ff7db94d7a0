"""Paged attention by the compiled kernel, for all rows of a step in one call per layer."""

from collections.abc import Iterator

import torch
from torch import Tensor

from triptych_generate.attention import Scoring, Span, StepLayout
from triptych_generate.kv_cache import KvCache
from triptych_generate.native import Kernels

#: Query tokens of a chunk that meet a block together, while it is in the first-level cache.
_TILE = 16
#: The kernel reads keys and values of a block in vectors of this many.
_LANES = 16


class NativeAttention:
    """Attention over ``cache`` by ``kernels``."""

    def __init__(self, kernels: Kernels, cache: KvCache) -> None:
        self._kernels = kernels
        self._cache = cache

    def begin(self, layout: StepLayout) -> "NativeStep":
        return NativeStep(self._kernels, self._cache, layout)


class NativeStep:
    """One step's rows as the kernel takes them."""

    def __init__(self, kernels: Kernels, cache: KvCache, layout: StepLayout) -> None:
        width = max(map(len, layout.tables), default=1)
        tables = [table + [0] * (width - len(table)) for table in layout.tables]
        self._kernels = kernels
        self._cache = cache
        self._slots = torch.tensor(layout.slots, dtype=torch.int32)
        self._tables = torch.tensor(tables, dtype=torch.int32)
        self._tiles = torch.tensor(list(_tiles(layout.spans)), dtype=torch.int32)

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


def _tiles(spans: list[Span]) -> Iterator[Span]:
    """Spans of at most ``_TILE`` rows."""
    for span in spans:
        for done in range(0, span.num_rows, _TILE):
            yield Span(
                span.first_row + done,
                min(_TILE, span.num_rows - done),
                span.table,
                span.position + done,
            )
