"""Decode steps beside what bounds them: their linear layers alone, and steps without scores."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoConfig

from bench.decoding import LABELS, Dtype, decoding
from triptych.models import ensure
from triptych_generate.linears import NativeLinear, PackedLinear
from triptych_generate.native import Kernels, load_kernels

_REPEATS = 21


@dataclass(frozen=True, slots=True)
class Bound:
    """Tokens per second at ``rows`` rows: of the linear layers alone, and of whole steps.

    ``torch_linears``: of the same layers as torch packs them (oneDNN).
    """

    rows: int
    linears: float
    torch_linears: float
    steps: float

    def row(self) -> str:
        return "\n".join(
            f"| step beside {name} alone, {self.rows} rows "
            f"| {self.steps:.0f} tok/s | {alone:.0f} tok/s | {self.steps / alone:.2f} |"
            for name, alone in (
                ("its linear layers", self.linears),
                ("torch's packed linear layers", self.torch_linears),
            )
        )


def bound(rows: int, dtype: Dtype) -> Bound:
    """All measured in turn. q, k and v count as one matrix, gate and up as one."""
    kernels = load_kernels()
    layers, inputs = _linears(rows, getattr(torch, dtype), kernels)
    torch_layers, _ = _linears(rows, getattr(torch, dtype), None)
    engine, _ = decoding(dtype, rows)
    seconds: list[tuple[float, ...]] = [
        (
            _seconds(lambda: _run(layers, inputs)),
            _seconds(lambda: _run(torch_layers, inputs)),
            _seconds(engine.step),
        )
        for _ in range(_REPEATS)
    ]
    return Bound(rows, *(rows / statistics.median(column) for column in zip(*seconds, strict=True)))


def labels_row(dtype: Dtype) -> str:
    """A step of one sequence that scores 26 labels beside one that scores nothing, in turn."""
    (plain, _), (scoring, _) = decoding(dtype, 1), decoding(dtype, 1, LABELS)
    without, labels = [], []
    for _ in range(2 * _REPEATS):
        without.append(_seconds(plain.step))
        labels.append(_seconds(scoring.step))
    ours, bare = statistics.median(labels) * 1000, statistics.median(without) * 1000
    return f"| 26 labels at one position | {ours:.2f} ms | {bare:.2f} ms | {ours / bare:.3f} |"


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.inference_mode()
def _run(layers: list[NativeLinear | PackedLinear], inputs: dict[int, Tensor]) -> None:
    for layer in layers:
        layer(inputs[layer.in_features])


def _linears(
    rows: int, dtype: torch.dtype, kernels: Kernels | None
) -> tuple[list[NativeLinear | PackedLinear], dict[int, Tensor]]:
    config = AutoConfig.from_pretrained(ensure("smollm2").directory, local_files_only=True)
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    shapes = [(hidden, qkv), (heads, hidden), (hidden, 2 * inner), (inner, hidden)]
    shapes *= config.num_hidden_layers
    shapes.append((hidden, config.vocab_size))
    layers = [_packed(*shape, dtype, kernels) for shape in shapes]
    padded = rows + rows % 2
    inputs = {width: torch.randn(padded, width, dtype=dtype) for width in (hidden, heads, inner)}
    return layers, inputs


def _packed(
    in_features: int, out_features: int, dtype: torch.dtype, kernels: Kernels | None
) -> NativeLinear | PackedLinear:
    weight = torch.randn(out_features, in_features, dtype=dtype)
    return NativeLinear(kernels, weight, None) if kernels else PackedLinear(weight, None)
