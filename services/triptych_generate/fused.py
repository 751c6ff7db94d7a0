"""Decoder layers of the llama shape, each computed by three calls of the compiled kernels.

A transformers layer makes about sixty calls into torch, which at a few rows take longer than the
work itself. Families whose layer is the llama one get this layer instead; the check at load
compares the whole model with transformers' own, as for any other.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from triptych_generate.attention import AttentionStep, Scoring
from triptych_generate.native import Kernels

#: Families with llama's layer; query and key norms and biases may be there or not.
FUSED_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Gates and values alternate in the packed weight in groups of this many.
_LANES = 16


class FusedLayer(nn.Module):
    """One decoder layer: attention and gated feed-forward, each after a norm, with residuals."""

    def __init__(self, layer: Any, scoring: Scoring, kernels: Kernels, *, is_last: bool) -> None:
        """Takes the weights of ``layer``; ``scoring`` is what its attention was seen to use."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._index: int = attention.layer_idx
        self._scoring = scoring
        self._is_last = is_last
        self._halves = kernels.Layer(
            attention.q_proj.out_features // attention.head_dim,
            attention.k_proj.out_features // attention.head_dim,
            attention.head_dim,
            _norm(kernels, layer.input_layernorm),
            _norm(kernels, layer.post_attention_layernorm),
            _norm(kernels, getattr(attention, "q_norm", None)),
            _norm(kernels, getattr(attention, "k_norm", None)),
            _packed(kernels, _joined(attention.q_proj, attention.k_proj, attention.v_proj)),
            _packed(kernels, attention.o_proj),
            _packed(kernels, _interleaved(mlp.gate_proj, mlp.up_proj)),
            _packed(kernels, mlp.down_proj),
        )

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        step: AttentionStep,
        **_unused: Any,
    ) -> Tensor:
        """``[1, rows, hidden]`` from the same; cosines and sines are ``[1, rows, head_dim]``.

        The last layer gives the step's kept rows alone.
        """
        query, key, value = self._halves.before(hidden_states, *position_embeddings)
        attended = step.attend(self._index, query, key, value, self._scoring)
        kept_rows = step.kept_rows if self._is_last else None
        return self._halves.after(attended, hidden_states, kept_rows)


def _norm(kernels: Kernels, norm: Any) -> Any:
    return None if norm is None else kernels.Norm(norm.weight, norm.variance_epsilon)


def _packed(kernels: Kernels, layer: nn.Linear) -> Any:
    return kernels.PackedLinear(kernels.pack_weight(layer.weight), layer.bias, layer.out_features)


def fuse_layers(model: nn.Module, scorings: dict[int, Scoring], kernels: Kernels) -> None:
    """Replace the decoder layers of a model of ``FUSED_FAMILIES``, in place.

    ``scorings``: what each layer's attention uses, by layer index.
    """
    decoder: Any = model.base_model
    layers = decoder.layers
    for index, layer in enumerate(layers):
        if _can_fuse(layer):
            is_last = index == len(layers) - 1
            layers[index] = FusedLayer(layer, scorings[index], kernels, is_last=is_last)


def gives_kept_rows(model: nn.Module) -> bool:
    """Whether the model's last layer gives the step's kept rows alone."""
    decoder: Any = model.base_model
    layers: Any = getattr(decoder, "layers", ())
    return bool(layers) and isinstance(layers[-1], FusedLayer)


def _can_fuse(layer: Any) -> bool:
    is_silu = isinstance(layer.mlp.act_fn, nn.SiLU | SiLUActivation)
    return is_silu and layer.mlp.gate_proj.out_features % _LANES == 0


def _joined(*layers: nn.Linear) -> nn.Linear:
    """One layer that gives the features of all, one after another."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return _linear(torch.cat(weights), torch.cat(biases) if biases else None)


def _interleaved(gate: nn.Linear, up: nn.Linear) -> nn.Linear:
    """Groups of features of the two layers in turn."""
    both = _joined(gate, up)
    bias = None if both.bias is None else _alternating(both.bias)
    return _linear(_alternating(both.weight), bias)


def _alternating(halves: Tensor) -> Tensor:
    grouped = halves.view(2, -1, _LANES, *halves.shape[1:])
    return grouped.transpose(0, 1).reshape(halves.shape)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
