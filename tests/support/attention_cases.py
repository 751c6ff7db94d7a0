"""Random paged batches for attention kernels, and their answer by plain formulas in float64."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.attention import Scoring

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and scoring of an attention layer."""

    num_kv_heads: int
    group_size: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: int | None
    softcap: float | None
    has_sinks: bool

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size

    def scoring(self) -> Scoring:
        sinks = torch.linspace(-1, 2, self.num_heads).to(self.dtype) if self.has_sinks else None
        return Scoring(self.key_dim**-0.5, self.window, self.softcap, sinks)


@dataclass(frozen=True, slots=True)
class Stored:
    """One sequence's queries, keys and values at all its positions, and where they are stored.

    ``query`` ``[heads, len, dim]``, ``key`` and ``value`` ``[kv_heads, len, dim]``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    block_ids: list[int]

    def __len__(self) -> int:
        return self.query.shape[1]


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions of the sequence at ``index`` that one step computes."""

    index: int
    positions: range


def store(shape: Shape, lengths: list[int], seed: int) -> tuple[list[Stored], Tensor, Tensor]:
    """Random sequences in randomly placed blocks; everything else in the pools is NaN."""
    torch.manual_seed(seed)
    needed = [-(-length // BLOCK_SIZE) for length in lengths]
    free = list(range(sum(needed) + 2))
    random.Random(seed).shuffle(free)
    pool = (len(free), shape.num_kv_heads)
    keys = torch.full((*pool, shape.key_dim, BLOCK_SIZE), math.nan, dtype=shape.dtype)
    values = torch.full((*pool, BLOCK_SIZE, shape.value_dim), math.nan, dtype=shape.dtype)
    stored = []
    for length, count in zip(lengths, needed, strict=True):
        one = Stored(
            torch.randn(shape.num_heads, length, shape.key_dim).to(shape.dtype),
            torch.randn(shape.num_kv_heads, length, shape.key_dim).to(shape.dtype),
            torch.randn(shape.num_kv_heads, length, shape.value_dim).to(shape.dtype),
            [free.pop() for _ in range(count)],
        )
        for position in range(length):
            block, offset = one.block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE
            keys[block, :, :, offset] = one.key[:, position]
            values[block, :, offset] = one.value[:, position]
        stored.append(one)
    return stored, keys, values


def lay_out(
    stored: list[Stored], pieces: list[Piece], *, tile_rows: int, num_padding: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """``query`` ``[heads, rows, dim]``, ``tables`` and ``tiles`` of a step; padding rows last."""
    tiles, rows, first_row = [], [], 0
    for row, piece in enumerate(pieces):
        rows.append(stored[piece.index].query[:, piece.positions.start : piece.positions.stop])
        for start in range(0, len(piece.positions), tile_rows):
            count = min(tile_rows, len(piece.positions) - start)
            tiles.append([first_row + start, count, row, piece.positions[start]])
        first_row += len(piece.positions)
    query = torch.cat(rows, dim=1)
    query = torch.cat([query, torch.zeros_like(query[:, :1]).expand(-1, num_padding, -1)], dim=1)
    longest = max(len(stored[piece.index].block_ids) for piece in pieces)
    tables = torch.zeros(len(pieces), longest, dtype=torch.int32)
    for row, piece in enumerate(pieces):
        block_ids = stored[piece.index].block_ids
        tables[row, : len(block_ids)] = torch.tensor(block_ids)
    return query, tables, torch.tensor(tiles, dtype=torch.int32)


def expected(one: Stored, positions: range, scoring: Scoring) -> Tensor:
    """``[positions, heads, value_dim]`` float64: softmax over the visible keys, head by head."""
    out = torch.empty(len(positions), len(one.query), one.value.shape[2], dtype=torch.float64)
    group_size = len(one.query) // len(one.key)
    for index, position in enumerate(positions):
        first = 0 if scoring.window is None else max(0, position - scoring.window + 1)
        for head in range(len(one.query)):
            key = one.key[head // group_size, first : position + 1].double()
            value = one.value[head // group_size, first : position + 1].double()
            scores = key @ one.query[head, position].double() * scoring.scaling
            if scoring.softcap is not None:
                scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
            if scoring.sinks is not None:
                scores = torch.cat([scores, scoring.sinks[head, None].double()])
            out[index, head] = torch.softmax(scores, 0)[: len(key)] @ value
    return out
