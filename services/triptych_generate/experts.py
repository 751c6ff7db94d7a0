"""Mixture-of-experts products whose rows have the same bits in every batch.

How many tokens an expert gets depends on the batch. So each expert's rows are padded to a multiple
of 16 (see ``linears``), and a token's experts are added in the token's own routing order.
"""

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "triptych"
_ROWS = 16


def register() -> None:
    """Make ``experts_implementation="triptych"`` known."""
    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _experts_forward)


def _experts_forward(
    experts: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """``[tokens, hidden]`` from the same, and each token's experts and weights ``[tokens, k]``."""
    parts = hidden_states.new_zeros(*top_k_index.shape, hidden_states.shape[-1])
    for expert in torch.unique(top_k_index).tolist():
        tokens, slots = torch.where(top_k_index == expert)
        padded = nn.functional.pad(hidden_states[tokens], (0, 0, 0, -len(tokens) % _ROWS))
        out = _apply_expert(experts, expert, padded)[: len(tokens)]
        parts[tokens, slots] = out * top_k_weights[tokens, slots, None].to(out.dtype)
    total = parts[:, 0].clone()
    for slot in range(1, parts.shape[1]):
        total += parts[:, slot]
    return total


def _apply_expert(experts: nn.Module, expert: int, rows: Tensor) -> Tensor:
    """One expert's gated layers, in the attributes that transformers gives all such modules."""
    if experts.has_gate:
        hidden: Tensor = experts._apply_gate(_project(experts, "gate_up_proj", expert, rows))  # type: ignore[operator]
    else:
        hidden = experts.act_fn(_project(experts, "up_proj", expert, rows))  # type: ignore[operator]
    return _project(experts, "down_proj", expert, hidden)


def _project(experts: nn.Module, name: str, expert: int, rows: Tensor) -> Tensor:
    weight: Tensor = getattr(experts, name)[expert]
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    return nn.functional.linear(rows, weight.t() if experts.is_transposed else weight, bias)
