"""Paged attention whose bits do not depend on the batch, behind transformers' attention seam.

Keys and values are met in blocks at absolute positions, by products of fixed inner shape; see
``softmax`` for why padding, other sequences and the cutting of a prefill change nothing.
"""

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from triptych_generate.decodes import DecodeGroup
from triptych_generate.kv_cache import KvCache, LayerShape
from triptych_generate.prefill import PrefillChunk
from triptych_generate.softmax import Scoring

IMPLEMENTATION = "triptych"


class AttentionStep(Protocol):
    """What a forward's ``step`` argument does in each attention layer."""

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


class ShapeProbe:
    """A step that stores nothing and learns each layer's shapes."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        self.shapes[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])


class PagedStep:
    """One step's ragged batch: decodes in the first rows, then chunks, then padding rows."""

    def __init__(
        self,
        cache: KvCache,
        *,
        blocks: Tensor,
        offsets: Tensor,
        decodes: DecodeGroup,
        chunks: list[PrefillChunk],
    ) -> None:
        """``blocks`` and ``offsets`` say where each real row's keys and values are stored."""
        self._cache = cache
        self._blocks = blocks
        self._offsets = offsets
        self._decodes = decodes
        self._chunks = chunks

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        num_rows, num_decodes = len(self._blocks), len(self._decodes)
        self._cache.write(
            layer,
            key=key[:, :num_rows],
            value=value[:, :num_rows],
            blocks=self._blocks,
            offsets=self._offsets,
        )
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        out = query.new_zeros(query.shape[1], query.shape[0], value.shape[2])
        if num_decodes:
            out[:num_decodes] = self._decodes.attend(keys, values, query[:, :num_decodes], scoring)
        for chunk in self._chunks:
            out[chunk.rows] = chunk.attend(keys, values, query[:, chunk.rows], scoring)
        return out
