"""Linear layers whose rows have the same bits in every batch.

Measured with torch 2.13 on AVX-512: oneDNN's packed product gives a row the same bits for every
even number of rows, in float32 and bfloat16; ``F.linear`` in bfloat16 for every multiple of 4, in
float32 only for multiples of 16 (4, 8 and 12 rows differed). One float32 row alone always differs.
So weights on the CPU are packed, for the compiled kernels (``native``), whose rows need no padding,
or else for oneDNN, and the step's rows are padded to what the model's slowest class of product
needs (``row_multiple``).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from triptych_generate.native import Kernels

#: Rows that weights are packed for; the layout suits fewer as well.
_PACK_ROWS = 256


class NativeLinear(nn.Module):
    """``nn.Linear`` on the CPU by the compiled kernels."""

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None) -> None:
        """``weight`` is ``[out_features, in_features]``; the packed copy replaces it."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._kernels = kernels
        self._packed = kernels.pack_weight(weight.detach())
        self._bias = None if bias is None else bias.detach().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        return self._kernels.linear(x, self._packed, self._bias, None, self.out_features, False)


class PackedLinear(nn.Module):
    """``nn.Linear`` on the CPU, with oneDNN's weight layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """``weight`` is ``[out_features, in_features]``; the packed copy replaces it."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), _PACK_ROWS
        )
        self._bias = None if bias is None else bias.detach().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return out


def pack_linears(model: nn.Module, kernels: Kernels | None) -> None:
    """Replace every linear layer of a model that ``can_pack`` by its packed form."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (layer := _as_linear(child)) is not None:
                weight, bias = layer
                packed = (
                    NativeLinear(kernels, weight, bias) if kernels else PackedLinear(weight, bias)
                )
                setattr(parent, name, packed)


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN has packed products of this dtype for this processor."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.type != "cpu" or not has_onednn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def row_multiple(model: nn.Module) -> int:
    """What the step's rows are padded to: a multiple of this."""
    has_raw_matrix = any(_is_raw_matrix(model, name, p) for name, p in model.named_parameters())
    if any(isinstance(module, NativeLinear) for module in model.modules()):
        return 16 if has_raw_matrix else 1
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        return 16 if has_raw_matrix else 2
    is_float32 = next(model.parameters()).dtype == torch.float32
    return 16 if is_float32 or has_raw_matrix else 4


def _as_linear(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """``[out_features, in_features]`` weight, and bias, of a linear layer."""
    if type(module) is nn.Linear:
        return module.weight, module.bias
    if type(module) is Conv1D:
        transposed: Any = module
        return transposed.weight.t(), transposed.bias
    return None


def _is_raw_matrix(model: nn.Module, name: str, parameter: Tensor) -> bool:
    """Multiplied outside of any linear layer: a router's or an expert's weights."""
    owner = model.get_submodule(name.rpartition(".")[0])
    is_layer = isinstance(owner, nn.Embedding | nn.Linear | Conv1D)
    return parameter.dim() >= 2 and not is_layer
