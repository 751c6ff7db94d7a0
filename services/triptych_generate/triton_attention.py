"""Paged attention as Triton kernels whose bits do not depend on the batch; for CUDA devices.

One program meets a few query rows with one run of blocks at absolute positions (a *split*); a
second kernel folds the results of a row's splits in order. Every product has one fixed shape, and
what belongs to other rows or lies beyond a row's own keys enters a row as an exact zero, so a row's
arithmetic depends on its own sequence alone. The fold is the same function in both kernels, with
its fused operations written out, so it gives the same bits whether one program folds all splits
(many rows) or each split has its own (few rows, long contexts).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.triton_ops import operand_of

#: A tile has at most this many rows.
MAX_TILE_ROWS = 32
#: Rows of a product: tokens times the heads that share a key head. Below 64, so that no GPU
#: generation takes an instruction of another shape, and few enough for float32 decodes.
_QUERIES = 32
#: Blocks of a split.
_SPLIT_BLOCKS = 8
#: Stands for no window: more than any position.
_NO_WINDOW = 1 << 30


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    tiles: Tensor,
    scoring: Scoring,
    *,
    scratch_bytes: int = 1 << 28,
) -> Tensor:
    """``[rows, heads, value_dim]`` in the query's dtype; rows that no tile covers are zero.

    Args:
        query: ``[heads, rows, dim]``, the last dimension dense.
        keys: ``[blocks, kv_heads, dim, block_size]``; 16 or more tokens, a power of two.
        values: ``[blocks, kv_heads, block_size, value_dim]``.
        tables: int32 ``[sequences, max_blocks]``: each sequence's block ids.
        tiles: int32 ``[tiles, 4]``: first row, number of rows, row of ``tables``, and absolute
            position of the first row. Rows of a tile are consecutive positions of one sequence;
            where there are as many tiles as rows, none has two.
        scoring: the layer's.
        scratch_bytes: what split results may take; where they would take more, one program folds
            all splits of a row.
    """
    num_heads, num_rows, key_dim = query.shape
    num_kv_heads, block_size, value_dim = keys.shape[1], keys.shape[3], values.shape[3]
    group_size = num_heads // num_kv_heads
    padded_group = triton.next_power_of_2(group_size)
    queries = max(_QUERIES, padded_group)
    most_rows = min(MAX_TILE_ROWS, num_rows - len(tiles) + 1)
    num_pieces = triton.cdiv(most_rows, queries // padded_group)
    num_splits = triton.cdiv(tables.shape[1], _SPLIT_BLOCKS)
    part_bytes = 4 * num_rows * num_heads * (value_dim + 2)
    num_parts = num_splits if num_splits * part_bytes <= scratch_bytes else 1
    tops = query.new_empty(num_parts, num_rows, num_heads, dtype=torch.float32)
    totals = torch.empty_like(tops)
    parts = query.new_empty(num_parts, num_rows, num_heads, value_dim, dtype=torch.float32)
    out = query.new_zeros(num_rows, num_heads, value_dim)
    shared = {
        "num_pieces": num_pieces,
        "num_rows": num_rows,
        "splits_per_part": triton.cdiv(num_splits, num_parts),
        "window": _NO_WINDOW if scoring.window is None else scoring.window,
        "HEADS": num_heads,
        "GROUP": group_size,
        "PADDED_GROUP": padded_group,
        "QUERIES": queries,
        "BLOCK": block_size,
        "SPLIT": _SPLIT_BLOCKS,
        "VALUE_DIM": value_dim,
        "PADDED_VALUE_DIM": _padded(value_dim),
        "num_warps": 4,
    }
    pieces = len(tiles) * num_pieces
    _attend[(pieces, num_kv_heads, num_parts)](
        query,
        keys,
        values,
        tables,
        tiles,
        tops,
        totals,
        parts,
        query_head_stride=query.stride(0),
        query_row_stride=query.stride(1),
        table_stride=tables.stride(0),
        scaling=scoring.scaling,
        softcap=1.0 if scoring.softcap is None else scoring.softcap,
        HAS_SOFTCAP=scoring.softcap is not None,
        KEY_DIM=key_dim,
        PADDED_KEY_DIM=_padded(key_dim),
        OPERAND=operand_of(keys.dtype),
        num_stages=2 if block_size * max(key_dim, value_dim) * keys.itemsize <= 1 << 15 else 1,
        **shared,
    )
    _join[(pieces, num_kv_heads)](
        tiles,
        tops,
        totals,
        parts,
        out if scoring.sinks is None else scoring.sinks.float(),
        out,
        HAS_SINKS=scoring.sinks is not None,
        num_stages=1,
        **shared,
    )
    return out


def _padded(dim: int) -> int:
    return max(16, int(triton.next_power_of_2(dim)))


@triton.jit
def _fold(top, total, acc, next_top, next_total, next_acc):
    """Softmax parts of a row over two key ranges, the second later. Exact where one is empty."""
    joined = tl.maximum(top, next_top)
    finite = tl.where(joined == float("-inf"), 0.0, joined)
    scale = tl.exp2(top - finite)
    next_scale = tl.exp2(next_top - finite)
    total = tl.fma(total, scale, next_total * next_scale)
    acc = tl.fma(acc, tl.broadcast_to(scale[:, None], acc.shape), next_acc * next_scale[:, None])
    return joined, total, acc


@triton.jit
def _tanh(x):
    small = tl.exp2(-2.0 * 1.4426950408889634 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def _first_and_last_block(
    position, start, num_tokens, window, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """Blocks that any row of a piece sees, and the first and last key position."""
    first_key = tl.maximum(position + start - window + 1, 0)
    last_key = position + tl.minimum(start + TOKENS, num_tokens) - 1
    return first_key // BLOCK, last_key // BLOCK, first_key, last_key


#: Triton compiles a kernel again for arguments that are 1 or multiples of 16. Never for these: a
#: row must meet one and the same machine code in every batch.
_NUMBERS = ["num_pieces", "num_rows", "splits_per_part", "window"]
_STRIDES = ["query_head_stride", "query_row_stride", "table_stride"]


@triton.jit(
    do_not_specialize=[*_NUMBERS, *_STRIDES],
    do_not_specialize_on_alignment=["tables", "tiles"],
)
def _attend(
    query,
    keys,
    values,
    tables,
    tiles,
    tops,
    totals,
    parts,
    query_head_stride,
    query_row_stride,
    table_stride,
    scaling,
    softcap,
    num_pieces,
    num_rows,
    splits_per_part,
    window,
    HAS_SOFTCAP: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PADDED_KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """One piece of a tile (tokens times heads of a group) with the splits of one part."""
    TOKENS: tl.constexpr = QUERIES // PADDED_GROUP
    tile = tiles + (tl.program_id(0) // num_pieces) * 4
    start = (tl.program_id(0) % num_pieces) * TOKENS
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    first_row = tl.load(tile)
    num_tokens = tl.load(tile + 1)
    table = tables + tl.load(tile + 2) * table_stride
    position = tl.load(tile + 3)
    first_block, last_block, first_key, last_key = _first_and_last_block(
        position, start, num_tokens, window, TOKENS, BLOCK
    )
    first_split = tl.maximum(part * splits_per_part, first_block // SPLIT)
    end_split = tl.minimum((part + 1) * splits_per_part, last_block // SPLIT + 1)
    if start >= num_tokens or first_split >= end_split:
        return

    places = tl.arange(0, QUERIES)
    tokens = start + places // PADDED_GROUP
    heads = kv_head * GROUP + places % PADDED_GROUP
    is_real = (tokens < num_tokens) & (places % PADDED_GROUP < GROUP)
    key_dims = tl.arange(0, PADDED_KEY_DIM)
    value_dims = tl.arange(0, PADDED_VALUE_DIM)
    offsets = tl.arange(0, BLOCK)
    rows = query + heads * query_head_stride + (first_row + tokens) * query_row_stride
    q = tl.load(
        rows[:, None] + key_dims[None, :],
        mask=is_real[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    ).to(OPERAND)
    positions = position + tokens
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, PADDED_VALUE_DIM], tl.float32)
    for split in range(first_split, end_split):
        split_top = tl.full([QUERIES], float("-inf"), tl.float32)
        split_total = tl.zeros([QUERIES], tl.float32)
        split_acc = tl.zeros([QUERIES, PADDED_VALUE_DIM], tl.float32)
        begin = tl.maximum(first_block, split * SPLIT)
        end = tl.minimum(last_block + 1, (split + 1) * SPLIT)
        for column in range(begin, end):
            block = tl.load(table + column).to(tl.int64) * (HEADS // GROUP) + kv_head
            k = tl.load(
                keys + block * (KEY_DIM * BLOCK) + key_dims[:, None] * BLOCK + offsets[None, :],
                mask=(key_dims < KEY_DIM)[:, None],
                other=0.0,
            ).to(OPERAND)
            scores = tl.dot(q, k, input_precision="ieee") * scaling
            if HAS_SOFTCAP:
                scores = softcap * _tanh(scores / softcap)
            key_positions = column * BLOCK + offsets
            distance = positions[:, None] - key_positions[None, :]
            is_seen = (distance >= 0) & (distance < window) & is_real[:, None]
            scores = tl.where(is_seen, scores * 1.4426950408889634, float("-inf"))
            new_top = tl.maximum(split_top, tl.max(scores, 1))
            finite = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(scores - finite[:, None])
            scale = tl.exp2(split_top - finite)
            split_top = new_top
            split_total = split_total * scale + tl.sum(weights, 1)
            # Never read what other owners of the block left: zero times NaN is NaN.
            is_own = (key_positions >= first_key) & (key_positions <= last_key)
            v = tl.load(
                values
                + block * (VALUE_DIM * BLOCK)
                + offsets[:, None] * VALUE_DIM
                + value_dims[None, :],
                mask=is_own[:, None] & (value_dims < VALUE_DIM)[None, :],
                other=0.0,
            )
            weights = weights.to(v.dtype).to(OPERAND)
            split_acc = tl.dot(
                weights, v.to(OPERAND), split_acc * scale[:, None], input_precision="ieee"
            )
        top, total, acc = _fold(top, total, acc, split_top, split_total, split_acc)
    place = (part * num_rows + first_row + tokens) * HEADS + heads
    tl.store(tops + place, top, mask=is_real)
    tl.store(totals + place, total, mask=is_real)
    tl.store(
        parts + place[:, None] * VALUE_DIM + value_dims[None, :],
        acc,
        mask=is_real[:, None] & (value_dims < VALUE_DIM)[None, :],
    )


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=["tiles"])
def _join(
    tiles,
    tops,
    totals,
    parts,
    sinks,
    out,
    num_pieces,
    num_rows,
    splits_per_part,
    window,
    HAS_SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
):
    """The rows of one piece of a tile: all parts folded in order, then the sinks, then divided."""
    TOKENS: tl.constexpr = QUERIES // PADDED_GROUP
    tile = tiles + (tl.program_id(0) // num_pieces) * 4
    start = (tl.program_id(0) % num_pieces) * TOKENS
    first_row = tl.load(tile)
    num_tokens = tl.load(tile + 1)
    position = tl.load(tile + 3)
    if start >= num_tokens:
        return
    first_block, last_block, _first_key, _last_key = _first_and_last_block(
        position, start, num_tokens, window, TOKENS, BLOCK
    )
    places = tl.arange(0, QUERIES)
    tokens = start + places // PADDED_GROUP
    heads = tl.program_id(1) * GROUP + places % PADDED_GROUP
    is_real = (tokens < num_tokens) & (places % PADDED_GROUP < GROUP)
    value_dims = tl.arange(0, PADDED_VALUE_DIM)
    is_stored = is_real[:, None] & (value_dims < VALUE_DIM)[None, :]
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, PADDED_VALUE_DIM], tl.float32)
    first_part = first_block // SPLIT // splits_per_part
    last_part = last_block // SPLIT // splits_per_part
    for part in range(first_part, last_part + 1):
        place = (part * num_rows + first_row + tokens) * HEADS + heads
        part_top = tl.load(tops + place, mask=is_real, other=float("-inf"))
        part_total = tl.load(totals + place, mask=is_real, other=0.0)
        part_acc = tl.load(
            parts + place[:, None] * VALUE_DIM + value_dims[None, :], mask=is_stored, other=0.0
        )
        top, total, acc = _fold(top, total, acc, part_top, part_total, part_acc)
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=is_real, other=0.0) * 1.4426950408889634
        none = tl.zeros([QUERIES, PADDED_VALUE_DIM], tl.float32)
        top, total, acc = _fold(top, total, acc, sink, tl.full([QUERIES], 1.0, tl.float32), none)
    total = tl.where(is_real, total, 1.0)
    tl.store(
        out + ((first_row + tokens) * HEADS + heads)[:, None] * VALUE_DIM + value_dims[None, :],
        acc / total[:, None],
        mask=is_stored,
    )
