"""The decoder of the llama shape, each of its layers computed by three calls of the kernels.

A transformers layer makes about sixty calls into torch, and the decoder around it makes masks and
settles options in every step, which at a few rows takes longer than the work itself. Families whose
decoder is the llama one get this decoder instead; the check at load compares the whole model with
transformers' own, as for any other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.modeling_outputs import BaseModelOutputWithPast

from triptych_generate.attention import AttentionStep, Scoring
from triptych_generate.native import Kernels, LayerHalves

#: Families with llama's decoder; query and key norms and biases may be there or not.
FUSED_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Gates and values alternate in the packed weight in groups of this many.
_LANES = 16


@dataclass(slots=True)
class _Layer:
    """Attention and gated feed-forward, each after a norm, with residuals.

    ``scoring``: what its attention was seen to use.
    """

    index: int
    halves: LayerHalves
    scoring: Scoring


class FusedDecoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, decoder: Any, scorings: dict[int, Scoring], kernels: Kernels) -> None:
        """Takes the weights of ``decoder``; ``scorings`` by layer index."""
        super().__init__()
        self.embed_tokens: nn.Module = decoder.embed_tokens
        self.rotary_emb: nn.Module = decoder.rotary_emb
        self._kernels = kernels
        self._norm_weight: Tensor = decoder.norm.weight
        self._norm_eps: float = decoder.norm.variance_epsilon
        self._layers = [
            _Layer(index, _halves(layer, kernels), scorings[index])
            for index, layer in enumerate(decoder.layers)
        ]

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, step: AttentionStep, **_unused: Any
    ) -> BaseModelOutputWithPast:
        """Hidden states ``[1, rows, hidden]`` from ``[1, rows]`` ids and positions.

        The last layer gives the step's kept rows alone.
        """
        hidden: Tensor = self.embed_tokens(input_ids)
        cos, sin = self.rotary_emb(hidden, position_ids)
        last = self._layers[-1]
        for layer in self._layers:
            query, key, value = layer.halves.before(hidden, cos, sin)
            attended = step.attend(layer.index, query, key, value, layer.scoring)
            hidden = layer.halves.after(attended, hidden, step.kept_rows if layer is last else None)
        return BaseModelOutputWithPast(
            last_hidden_state=self._kernels.rms_norm(hidden, self._norm_weight, self._norm_eps)
        )


def fuse_decoder(model: nn.Module, scorings: dict[int, Scoring], kernels: Kernels) -> None:
    """Replace the decoder of a model of ``FUSED_FAMILIES``, where its layers can be computed so.

    ``scorings``: what each layer's attention uses, by layer index.
    """
    whole: Any = model
    decoder: Any = whole.base_model
    if all(_can_fuse(layer) for layer in decoder.layers):
        setattr(whole, whole.base_model_prefix, FusedDecoder(decoder, scorings, kernels))


def gives_kept_rows(model: nn.Module) -> bool:
    """Whether the model's last layer gives the step's kept rows alone."""
    return isinstance(model.base_model, FusedDecoder)


def _can_fuse(layer: Any) -> bool:
    is_silu = isinstance(layer.mlp.act_fn, nn.SiLU | SiLUActivation)
    return is_silu and layer.mlp.gate_proj.out_features % _LANES == 0


def _halves(layer: Any, kernels: Kernels) -> LayerHalves:
    attention, mlp = layer.self_attn, layer.mlp
    return kernels.Layer(
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


def _norm(kernels: Kernels, norm: Any) -> Any:
    return None if norm is None else kernels.Norm(norm.weight, norm.variance_epsilon)


def _packed(kernels: Kernels, layer: nn.Linear) -> Any:
    return kernels.PackedLinear(kernels.pack_weight(layer.weight), layer.bias, layer.out_features)


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
