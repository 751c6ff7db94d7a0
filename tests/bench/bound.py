"""The linear-only bound: tokens per second of the packed linears and the head alone."""

import statistics
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig

from triptych_generate.linears import NativeLinear, PackedLinear
from triptych_generate.native import load_kernels


def linear_bound(model_dir: Path, rows: int, dtype: torch.dtype, *, repeats: int = 7) -> float:
    """Tokens per second of one step's linear layers at ``rows`` rows, on the CPU.

    q, k and v count as one matrix, gate and up as one, as an engine may fuse them.
    """
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    shapes = [(hidden, qkv), (heads, hidden), (hidden, 2 * inner), (inner, hidden)]
    layers = [_packed(*shape, dtype) for _ in range(config.num_hidden_layers) for shape in shapes]
    layers.append(_packed(hidden, config.vocab_size, dtype))
    padded = rows + rows % 2
    inputs = {width: torch.randn(padded, width, dtype=dtype) for width in (hidden, heads, inner)}
    with torch.inference_mode():
        times = [_step(layers, inputs) for _ in range(repeats + 2)][2:]
    return rows / statistics.median(times)


def _packed(in_features: int, out_features: int, dtype: torch.dtype) -> NativeLinear | PackedLinear:
    weight, kernels = torch.randn(out_features, in_features, dtype=dtype), load_kernels()
    return NativeLinear(kernels, weight, None) if kernels else PackedLinear(weight, None)


def _step(layers: list[NativeLinear | PackedLinear], inputs: dict[int, Tensor]) -> float:
    start = time.perf_counter()
    for layer in layers:
        layer(inputs[layer.in_features])
    return time.perf_counter() - start
