"""Paged attention behind transformers' attention seam.

Each layer stores its new keys and values and attends, through the ``step`` that a forward is given:
by the compiled kernel (``native_attention``), by Triton's (``kernel_steps``), or by torch operators
(``torch_attention``).
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from triptych_generate.kv_cache import LayerShape

IMPLEMENTATION = "triptych"


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns ``query @ keys`` into weights.

    ``window``: how many tokens back a query sees, itself included. ``sinks``: ``[heads]`` scores
    that take their part of the softmax and have no value.
    """

    scaling: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None


class AttentionStep(Protocol):
    """What a forward's ``step`` argument does in each attention layer.

    ``kept_rows``: the rows ``[kept]`` whose last hidden state is needed; None: all. A layer may
    give no others when it is the last.
    """

    kept_rows: Tensor | None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """``[tokens, heads, value_dim]`` from ``[heads, tokens, dim]`` and new keys and values."""


def register() -> None:
    """Make ``attn_implementation="triptych"`` known. No mask function: no mask is ever built."""
    AttentionInterface.register(IMPLEMENTATION, _attention_forward)


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scoring = Scoring(float(scale), sliding_window, softcap, s_aux)
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # an int on every attention module
    return step.attend(layer, query[0], key[0], value[0], scoring)[None], None


class LayerProbe:
    """A step that stores nothing and learns what each layer's attention takes."""

    def __init__(self) -> None:
        self.kept_rows: Tensor | None = None
        self.shapes: dict[int, LayerShape] = {}
        self.scorings: dict[int, Scoring] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        self.shapes[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        self.scorings[layer] = scoring
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])
