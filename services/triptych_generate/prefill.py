"""Attention of one prefill chunk: consecutive query tokens of one sequence."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.softmax import (
    ROWS,
    cap_scores,
    first_visible,
    mask_of,
    pad_rows,
    scale_queries,
    softmax_parts,
)

#: Query tokens that are attended at once: bounds the memory of their scores.
_TILE = 128


@dataclass(frozen=True, slots=True)
class _Tile:
    """Tokens of a chunk: rows ``start …`` of it, the first at ``position``."""

    start: int
    num_tokens: int
    position: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class PrefillChunk:
    """Rows ``first_row …`` of the batch are a sequence's positions ``position …``."""

    def __init__(
        self,
        *,
        first_row: int,
        num_tokens: int,
        position: int,
        block_ids: list[int],
        block_size: int,
        device: torch.device,
    ) -> None:
        self.rows = slice(first_row, first_row + num_tokens)
        self._num_tokens = num_tokens
        self._position = position
        self._block_ids = block_ids
        self._block_size = block_size
        self._device = device
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, keys: Tensor, values: Tensor, query: Tensor, scoring: Scoring) -> Tensor:
        """``[tokens, heads, value_dim]`` float32 from ``[heads, tokens, dim]``."""
        out = [
            self._attend_tile(tile, keys, values, query[:, tile.start : tile.end], scoring)
            for tile in self._tiles()
        ]
        return out[0] if len(out) == 1 else torch.cat(out)

    def _tiles(self) -> Iterator[_Tile]:
        for start in range(0, self._num_tokens, _TILE):
            num_tokens = min(_TILE, self._num_tokens - start)
            yield _Tile(start, num_tokens, self._position + start)

    def _attend_tile(
        self, tile: _Tile, keys: Tensor, values: Tensor, query: Tensor, scoring: Scoring
    ) -> Tensor:
        """One product per block with the queries of all heads that share a key head."""
        num_kv_heads = keys.shape[1]
        padded = pad_rows(scale_queries(query, scoring))
        rows = padded.reshape(num_kv_heads, -1, query.shape[2])
        block_ids = self._visible_blocks(tile, scoring.window)
        scores = rows.new_empty(len(block_ids), num_kv_heads, rows.shape[1], self._block_size)
        for index, block in enumerate(block_ids):
            torch.bmm(rows, keys[block].float(), out=scores[index])
        cap_scores(scores, scoring)
        self._hide(scores, tile, scoring.window)
        sinks = _sinks(scoring.sinks, num_kv_heads, padded.shape[1])
        weights, total = softmax_parts(scores, block_dim=0, sinks=sinks)
        summed = rows.new_zeros(num_kv_heads, rows.shape[1], values.shape[3])
        for index, block in enumerate(block_ids):
            summed += torch.bmm(weights[index], values[block].float())
        summed /= total
        by_head = summed.view(len(query), -1, values.shape[3])
        return by_head[:, : tile.num_tokens].transpose(0, 1)

    def _visible_blocks(self, tile: _Tile, window: int | None) -> list[int]:
        first = first_visible(tile.position, window) // self._block_size
        last = (tile.position + tile.num_tokens - 1) // self._block_size
        return self._block_ids[first : last + 1]

    def _hide(self, scores: Tensor, tile: _Tile, window: int | None) -> None:
        """Add the mask to ``scores`` ``[blocks, kv_heads, rows, keys]``, where it hides any key."""
        mask = self._mask(tile, window)
        masked = scores[len(scores) - len(mask) :]
        masked.view(len(mask), -1, mask.shape[2], self._block_size).add_(mask)

    def _mask(self, tile: _Tile, window: int | None) -> Tensor:
        """``[last blocks, 1, tokens, keys]``. Without a window, earlier blocks are all visible."""
        name = (tile.start, window)
        if name not in self._masks:
            size = self._block_size
            earliest = tile.position if window is None else first_visible(tile.position, window)
            first = earliest // size * size
            num_blocks = -(-(tile.position + tile.num_tokens - first) // size)
            key_positions = torch.arange(first, first + num_blocks * size, device=self._device)
            num_rows = -(-tile.num_tokens // ROWS) * ROWS
            queries = torch.arange(num_rows, device=self._device) + tile.position
            distance = queries[:, None] - key_positions.view(-1, 1, 1, size)
            self._masks[name] = mask_of(distance, window)
        return self._masks[name]


def _sinks(sinks: Tensor | None, num_kv_heads: int, num_tokens: int) -> Tensor | None:
    """``[1, kv_heads, heads of each x tokens, 1]``."""
    if sinks is None:
        return None
    return sinks.float()[:, None].expand(-1, num_tokens).reshape(1, num_kv_heads, -1, 1)
