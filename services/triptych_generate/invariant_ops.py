"""Puts batch-invariant kernels in the place of torch's own products and reductions on CUDA.

Every linear layer, router, expert and norm of a transformers model ends in these few operators, so
replacing them here reaches all of them, whatever a family's modules are called.
"""

import functools
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, library

from triptych_generate.triton_ops import (
    can_multiply,
    can_reduce,
    product,
    row_log_softmax,
    row_mean,
)


@functools.cache
def install() -> library.Library:
    """Replace the operators on CUDA for the rest of the process."""
    return override("CUDA")


def override(dispatch_key: Literal["CPU", "CUDA"]) -> library.Library:
    """Replace the operators of one kind of device while the result is alive."""
    overrides: Any = library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    operators = {"mm": _mm, "addmm": _addmm, "mean.dim": _mean, "_log_softmax": _log_softmax}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid")
        for name, function in operators.items():
            overrides.impl(name, function, dispatch_key)
    owned: library.Library = overrides
    return owned


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if can_multiply(left, right):
        return product(left, right)
    return torch.mm(left, right, out=left.new_empty(0))


def _addmm(
    bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    is_linear = bias.dim() == 1 and bias.is_contiguous() and beta == 1 and alpha == 1
    if is_linear and can_multiply(left, right):
        return product(left, right, bias)
    out = left.new_empty(0)
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha, out=out)


def _mean(
    values: Tensor,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    is_last = dim is not None and [axis % values.dim() for axis in dim] == [values.dim() - 1]
    if is_last and can_reduce(values) and dtype in (None, values.dtype):
        means = row_mean(values.reshape(-1, values.shape[-1])).view(values.shape[:-1])
        return means[..., None] if keepdim else means
    out = values.new_empty(0, dtype=dtype)
    return torch.mean(values, dim, keepdim, dtype=dtype, out=out)


def _log_softmax(values: Tensor, dim: int, half_to_float: bool) -> Tensor:
    dtype = torch.float32 if half_to_float else values.dtype
    if dim % values.dim() == values.dim() - 1 and can_reduce(values):
        rows = values.reshape(-1, values.shape[-1])
        return row_log_softmax(rows, dtype).view(values.shape)
    out = values.new_empty(0, dtype=dtype)
    result: Tensor = torch.ops.aten._log_softmax.out(values, dim, half_to_float, out=out)
    return result
