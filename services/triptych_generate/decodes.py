"""Attention of all decodes of a step as one group: one query token for each sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.softmax import (
    cap_scores,
    first_visible,
    mask_of,
    pad_rows,
    scale_queries,
    softmax_parts,
)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring blocks of one sequence: ``count`` from ``block``, at ``column`` of its table."""

    row: int
    column: int
    block: int
    count: int


@dataclass(frozen=True, slots=True)
class _View:
    """What a window lets the group see: runs of blocks, and ``[seqs, blocks, 1, 1, keys]``."""

    runs: list[_Run]
    mask: Tensor

    @property
    def longest_run(self) -> int:
        return max(run.count for run in self.runs)


@dataclass(frozen=True, slots=True)
class _Room:
    """Scores and block results of one layer shape, used by all layers of the step in turn.

    Places of blocks that a shorter sequence lacks are never written by a product, so they stay
    finite, and the mask makes their weight zero.
    """

    scores: Tensor
    parts: Tensor
    run_scores: list[Tensor]
    run_parts: list[Tensor]


class DecodeGroup:
    """One step's decodes.

    Every block is a product of ``ROWS`` or more query rows (those of the heads that share a key
    head) with the block's keys. Blocks that lie next to one another go into one call, straight
    from the pool: nothing is gathered.
    """

    def __init__(
        self,
        positions: list[int],
        tables: list[list[int]],
        *,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._positions = positions
        self._tables = tables
        self._block_size = block_size
        self._device = device
        self._views: dict[int | None, _View] = {}
        self._rooms: dict[tuple[int | None, int, int, int], _Room] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def attend(self, keys: Tensor, values: Tensor, query: Tensor, scoring: Scoring) -> Tensor:
        """``[seqs, heads, value_dim]`` float32 from ``[heads, seqs, dim]``."""
        num_heads, num_kv_heads, num_seqs = len(query), keys.shape[1], len(self)
        view = self._view(scoring.window)
        rows = scale_queries(query, scoring).view(num_kv_heads, -1, num_seqs, query.shape[2])
        rows = pad_rows(rows.permute(2, 0, 1, 3))
        room = self._room(view, scoring.window, rows, values)
        repeated = rows[:, None].expand(-1, view.longest_run, -1, -1, -1).flatten(1, 2).unbind()
        flat = keys.flatten(0, 1)
        for run, out in zip(view.runs, room.run_scores, strict=True):
            torch.bmm(repeated[run.row][: len(out)], _blocks(flat, run, num_kv_heads), out=out)
        scores = cap_scores(room.scores, scoring).add_(view.mask)
        sinks = _sinks(scoring.sinks, num_kv_heads)
        _, total = softmax_parts(scores, block_dim=1, sinks=sinks)
        flat = values.flatten(0, 1)
        for run, weights, out in zip(view.runs, room.run_scores, room.run_parts, strict=True):
            torch.bmm(weights, _blocks(flat, run, num_kv_heads), out=out)
        summed = room.parts[:, 0].clone()
        for column in range(1, room.parts.shape[1]):
            summed += room.parts[:, column]
        summed /= total
        num_queries = num_heads // num_kv_heads
        return summed[:, :, :num_queries].reshape(num_seqs, num_heads, values.shape[3])

    def _view(self, window: int | None) -> _View:
        if window not in self._views:
            self._views[window] = self._make_view(window)
        return self._views[window]

    def _make_view(self, window: int | None) -> _View:
        size = self._block_size
        firsts = [first_visible(position, window) // size for position in self._positions]
        visible = [
            table[first : position // size + 1]
            for table, first, position in zip(self._tables, firsts, self._positions, strict=True)
        ]
        shape = (-1, 1, 1, 1, 1)
        starts = torch.tensor(firsts, device=self._device).view(shape) * size
        offsets = torch.arange(max(map(len, visible)) * size, device=self._device)
        key_positions = starts + offsets.view(1, -1, 1, 1, size)
        distance = torch.tensor(self._positions, device=self._device).view(shape) - key_positions
        runs = [run for row, blocks in enumerate(visible) for run in _runs_of(row, blocks)]
        return _View(runs, mask_of(distance, window))

    def _room(self, view: _View, window: int | None, rows: Tensor, values: Tensor) -> _Room:
        num_seqs, num_kv_heads, num_rows, _ = rows.shape
        name = (window, num_kv_heads, num_rows, values.shape[3])
        if name not in self._rooms:
            shape = (num_seqs, view.mask.shape[1], num_kv_heads, num_rows)
            scores = rows.new_zeros(*shape, self._block_size)
            parts = rows.new_zeros(*shape, values.shape[3])
            self._rooms[name] = _Room(
                scores,
                parts,
                [_columns(scores, run) for run in view.runs],
                [_columns(parts, run) for run in view.runs],
            )
        return self._rooms[name]


def _runs_of(row: int, blocks: list[int]) -> list[_Run]:
    runs: list[_Run] = []
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            runs.append(_Run(row, start, blocks[start], end - start))
            start = end
    return runs


def _blocks(flat: Tensor, run: _Run, num_kv_heads: int) -> Tensor:
    """A run's part of a pool ``[blocks * kv_heads, …]``, float32."""
    return flat[run.block * num_kv_heads : (run.block + run.count) * num_kv_heads].float()


def _columns(room: Tensor, run: _Run) -> Tensor:
    return room[run.row, run.column : run.column + run.count].flatten(0, 1)


def _sinks(sinks: Tensor | None, num_kv_heads: int) -> Tensor | None:
    """``[1, 1, kv_heads, rows, 1]``."""
    if sinks is None:
        return None
    return pad_rows(sinks.float().view(1, 1, num_kv_heads, -1, 1))
