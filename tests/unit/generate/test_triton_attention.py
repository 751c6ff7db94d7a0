"""The Triton attention, through Triton's interpreter, against plain float64 and against itself."""

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.attention_cases import BLOCK_SIZE, Piece, Shape, Stored, expected, lay_out, store
from triptych_generate.decodes import DecodeGroup
from triptych_generate.prefill import PrefillChunk
from triptych_generate.triton_attention import paged_attention

#: A bfloat16 weight has 8 bits, and the output is rounded once more.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

shapes = st.builds(
    Shape,
    num_kv_heads=st.sampled_from([1, 2]),
    group_size=st.sampled_from([1, 3, 4]),
    key_dim=st.sampled_from([16, 24, 64]),
    value_dim=st.sampled_from([12, 16, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    window=st.sampled_from([None, 1, 17, 40]),
    softcap=st.sampled_from([None, 5.0]),
    has_sinks=st.booleans(),
)
seeds = st.integers(0, 99)


@pytest.fixture(autouse=True, scope="module")
def unwritten_memory_is_nan() -> Iterator[None]:
    """Torch fills new memory with NaN, so that reading what no program wrote shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def attend(
    shape: Shape,
    held: tuple[list[Stored], Tensor, Tensor],
    pieces: list[Piece],
    *,
    tile_rows: int = 16,
    num_padding: int = 0,
    scratch_bytes: int = 1 << 28,
) -> list[Tensor]:
    """The output rows of each piece."""
    stored, keys, values = held
    query, tables, tiles = lay_out(stored, pieces, tile_rows=tile_rows, num_padding=num_padding)
    out = paged_attention(
        query, keys, values, tables, tiles, shape.scoring(), scratch_bytes=scratch_bytes
    )
    num_real = len(out) - num_padding
    assert not out[num_real:].any()
    return list(torch.split(out[:num_real], [len(piece.positions) for piece in pieces]))


@given(shape=shapes, lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3), seed=seeds)
@settings(max_examples=15)
def test_attention_equals_the_plain_formula(shape: Shape, lengths: list[int], seed: int) -> None:
    held = store(shape, lengths, seed)
    draw = random.Random(seed)
    starts = [draw.randrange(length) for length in lengths]
    pieces = [Piece(i, range(start, lengths[i])) for i, start in enumerate(starts)]
    for piece, rows in zip(pieces, attend(shape, held, pieces, num_padding=seed % 3), strict=True):
        wanted = expected(held[0][piece.index], piece.positions, shape.scoring())
        tolerance = TOLERANCE[shape.dtype]
        torch.testing.assert_close(rows.double(), wanted, atol=tolerance, rtol=tolerance)


@given(shape=shapes, lengths=st.lists(st.integers(1, 60), min_size=2, max_size=4), seed=seeds)
@settings(max_examples=6)
def test_rows_have_the_same_bits_in_any_batch_and_any_chunking(
    shape: Shape, lengths: list[int], seed: int
) -> None:
    held = store(shape, lengths, seed)
    alone = torch.cat(attend(shape, held, [Piece(0, range(lengths[0]))]))
    draw = random.Random(seed)
    start = 0
    while start < lengths[0]:
        end = draw.randint(start + 1, lengths[0])
        others = [
            Piece(i, range(draw.randrange(lengths[i]), lengths[i]))
            for i in draw.sample(range(1, len(lengths)), draw.randint(0, len(lengths) - 1))
        ]
        place = draw.randint(0, len(others))
        pieces = [*others[:place], Piece(0, range(start, end)), *others[place:]]
        among = attend(
            shape,
            held,
            pieces,
            tile_rows=draw.choice([1, 3, 16, 32]),
            num_padding=draw.choice([0, 2]),
        )
        assert torch.equal(among[place], alone[start:end])
        start = end


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_long_contexts_have_the_same_bits_as_decodes_chunks_and_with_little_scratch(
    dtype: torch.dtype, window: int | None
) -> None:
    shape = Shape(1, 3, 16, 16, dtype, window, None, has_sinks=True)
    length = 2 * 8 * BLOCK_SIZE + 5
    held = store(shape, [length], 0)
    last = range(length - 20, length)
    whole = torch.cat(attend(shape, held, [Piece(0, last)]))
    assert torch.equal(torch.cat(attend(shape, held, [Piece(0, last)], scratch_bytes=0)), whole)
    steps = [attend(shape, held, [Piece(0, range(p, p + 1))])[0] for p in last]
    assert torch.equal(torch.cat(steps), whole)
    wanted = expected(held[0][0], last, shape.scoring())
    torch.testing.assert_close(whole.double(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@given(shape=shapes, lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3), seed=seeds)
@settings(max_examples=6)
def test_attention_equals_the_torch_path(shape: Shape, lengths: list[int], seed: int) -> None:
    stored, keys, values = store(shape, lengths, seed)
    keys, values = keys.nan_to_num(), values.nan_to_num()
    pieces = [Piece(0, range(lengths[0]))]
    pieces += [Piece(i, range(lengths[i] - 1, lengths[i])) for i in range(1, len(lengths))]
    chunk, *decodes = attend(shape, (stored, keys, values), pieces)
    ours = [chunk, *decodes]
    prefill = PrefillChunk(
        first_row=0,
        num_tokens=lengths[0],
        position=0,
        block_ids=stored[0].block_ids,
        block_size=BLOCK_SIZE,
        device=keys.device,
    )
    theirs = [prefill.attend(keys, values, stored[0].query, shape.scoring())]
    if decodes:
        group = DecodeGroup(
            [length - 1 for length in lengths[1:]],
            [one.block_ids for one in stored[1:]],
            block_size=BLOCK_SIZE,
            device=keys.device,
        )
        last = torch.cat([one.query[:, -1:] for one in stored[1:]], dim=1)
        theirs += list(torch.split(group.attend(keys, values, last, shape.scoring()), 1))
    for mine, other in zip(ours, theirs, strict=True):
        tolerance = TOLERANCE[shape.dtype]
        torch.testing.assert_close(mine.float(), other, atol=tolerance, rtol=tolerance)
