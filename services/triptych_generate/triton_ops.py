"""Products and row reductions as Triton kernels whose rows have the same bits in every batch.

cuBLAS chooses its kernel, and torch its reduction's shape, by how many rows there are. Here every
tile of a product has one shape and one order over the inner dimension, and every row reduction is
one program, so the number of rows changes nothing but the number of programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Tile of a product. 32 rows: see ``triton_attention``.
_ROWS, _COLUMNS = 32, 64
_CHUNK = 1024
_OPERANDS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def can_multiply(left: Tensor, right: Tensor) -> bool:
    """Whether ``product`` takes these matrices."""
    return left.dtype == right.dtype and left.dtype in _OPERANDS


def can_reduce(values: Tensor) -> bool:
    """Whether ``row_mean`` and ``row_log_softmax`` take these values."""
    return values.dtype in _OPERANDS


def operand_of(dtype: torch.dtype) -> tl.dtype:
    """What ``tl.dot`` is given; it accumulates in float32.

    Triton's interpreter has no bfloat16 products; float32 holds the same values.
    """
    return tl.float32 if triton.knobs.runtime.interpret else _OPERANDS[dtype]


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``left @ right + bias`` for ``[rows, inner]``, ``[inner, columns]`` and ``[columns]``."""
    left = _dense(left)
    num_rows, inner = left.shape
    num_columns = right.shape[1]
    out = left.new_empty(num_rows, num_columns)
    grid = (triton.cdiv(num_rows, _ROWS), triton.cdiv(num_columns, _COLUMNS))
    _product[grid](
        left,
        right,
        out if bias is None else bias,
        out,
        num_rows,
        num_columns,
        inner,
        right.stride(0),
        right.stride(1),
        HAS_BIAS=bias is not None,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        INNER=32 if left.dtype == torch.float32 else 64,
        OPERAND=operand_of(left.dtype),
        num_warps=4,
        num_stages=3,
    )
    return out


def row_mean(values: Tensor) -> Tensor:
    """``[rows]`` means of ``[rows, width]``, summed in float32."""
    rows = _dense(values)
    out = rows.new_empty(len(rows))
    _row_mean[(len(rows),)](rows, out, rows.shape[1], CHUNK=_CHUNK, num_warps=4)
    return out


def row_log_softmax(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Log-softmax of each row of ``[rows, width]``, computed in float32, as ``dtype``."""
    rows = _dense(values)
    out = rows.new_empty(rows.shape, dtype=dtype)
    _row_log_softmax[(len(rows),)](rows, out, rows.shape[1], CHUNK=_CHUNK, num_warps=4)
    return out


def _dense(matrix: Tensor) -> Tensor:
    """Row-major and on a boundary of 16 bytes, so that one compiled kernel serves all calls."""
    dense = matrix.contiguous()
    return dense if dense.data_ptr() % 16 == 0 else dense.clone()


@triton.jit(do_not_specialize=["num_rows"])  # see triton_attention
def _product(
    left,
    right,
    bias,
    out,
    num_rows,
    num_columns,
    inner,
    right_inner_stride,
    right_column_stride,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    OPERAND: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < num_rows, columns < num_columns
    left_rows = left + rows[:, None].to(tl.int64) * inner
    right_columns = right + columns[None, :].to(tl.int64) * right_column_stride
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, inner, INNER):
        places = start + tl.arange(0, INNER)
        is_place = places < inner
        a = tl.load(
            left_rows + places[None, :], mask=is_row[:, None] & is_place[None, :], other=0.0
        )
        b = tl.load(
            right_columns + places[:, None].to(tl.int64) * right_inner_stride,
            mask=is_place[:, None] & is_column[None, :],
            other=0.0,
        )
        acc = tl.dot(a.to(OPERAND), b.to(OPERAND), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + rows[:, None].to(tl.int64) * num_columns + columns[None, :],
        acc.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_column[None, :],
    )


@triton.jit
def _row_mean(values, out, width, CHUNK: tl.constexpr):
    row = values + tl.program_id(0).to(tl.int64) * width
    sums = tl.zeros([CHUNK], tl.float32)
    for start in range(0, width, CHUNK):
        places = start + tl.arange(0, CHUNK)
        sums += tl.load(row + places, mask=places < width, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / width
    tl.store(out + tl.program_id(0), mean.to(out.dtype.element_ty))


@triton.jit
def _row_log_softmax(values, out, width, CHUNK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * width
    tops = tl.full([CHUNK], float("-inf"), tl.float32)
    for start in range(0, width, CHUNK):
        places = start + tl.arange(0, CHUNK)
        chunk = tl.load(values + begin + places, mask=places < width, other=float("-inf"))
        tops = tl.maximum(tops, chunk.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    top = tl.max(tops, 0)
    sums = tl.zeros([CHUNK], tl.float32)
    for start in range(0, width, CHUNK):
        places = start + tl.arange(0, CHUNK)
        chunk = tl.load(values + begin + places, mask=places < width, other=float("-inf"))
        sums += tl.exp(chunk.to(tl.float32) - top)
    log_total = tl.log(tl.sum(sums, 0))
    for start in range(0, width, CHUNK):
        places = start + tl.arange(0, CHUNK)
        chunk = tl.load(values + begin + places, mask=places < width, other=0.0)
        logprobs = chunk.to(tl.float32) - top - log_total
        tl.store(out + begin + places, logprobs.to(out.dtype.element_ty), mask=places < width)
