"""Runs the model over one step's batch."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triptych_generate.attention import (
    IMPLEMENTATION,
    AttentionStep,
    LayerProbe,
    PagedAttention,
)
from triptych_generate.batch import PromptRows, make_batch
from triptych_generate.experts import IMPLEMENTATION as EXPERTS_IMPLEMENTATION
from triptych_generate.kv_cache import KvCache
from triptych_generate.linears import row_multiple
from triptych_generate.loader import LoadedModel
from triptych_generate.native import Kernels
from triptych_generate.native_attention import NativeAttention, can_attend
from triptych_generate.scheduler import Plan
from triptych_generate.sequence import Sequence
from triptych_generate.torch_attention import TorchAttention


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Float32 logits of one step: a row per sequence that samples, then the prompts' rows.

    ``kernels``: what they are scored with, where there are compiled ones.
    """

    samplers: list[Sequence]
    sample_logits: Tensor
    prompts: list[PromptRows]
    prompt_logits: Tensor
    kernels: Kernels | None = None


class Runner:
    """A model with paged attention and its KV cache. One thread at a time."""

    def __init__(self, loaded: LoadedModel, cache: KvCache) -> None:
        """``loaded`` must have been given to ``use_paged_attention``."""
        self._loaded = loaded
        self._block_size = cache.block_size
        self._attention = _paged_attention(loaded, cache)
        self._row_multiple = row_multiple(loaded.model)

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepLogits:
        """The logits that the plan's sequences need next."""
        batch = make_batch(
            plan,
            block_size=self._block_size,
            row_multiple=self._row_multiple,
            device=self._loaded.device,
        )
        logits = forward(
            self._loaded.model,
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            logit_rows=batch.logit_rows,
            step=self._attention.begin(batch.layout),
        )
        num_samplers = len(batch.samplers)
        return StepLogits(
            samplers=batch.samplers,
            sample_logits=logits[:num_samplers].float(),
            prompts=batch.prompts,
            prompt_logits=logits[num_samplers : batch.num_logits],
            kernels=self._loaded.kernels,
        )


def _paged_attention(loaded: LoadedModel, cache: KvCache) -> PagedAttention:
    if loaded.kernels is not None and can_attend(cache):
        return NativeAttention(loaded.kernels, cache)
    return TorchAttention(cache, loaded.device)


def use_paged_attention(loaded: LoadedModel) -> None:
    """Switch the model from transformers' attention and experts to the engine's."""
    loaded.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    if loaded.model._can_set_experts_implementation():  # type: ignore[operator]
        loaded.model.set_experts_implementation(EXPERTS_IMPLEMENTATION)  # type: ignore[operator]


@torch.inference_mode()
def probe_layers(loaded: LoadedModel) -> LayerProbe:
    """What each attention layer stores per token and how it scores, from one small forward."""
    probe = LayerProbe()
    tokens = torch.zeros(1, 4, dtype=torch.long, device=loaded.device)
    positions = torch.arange(4, device=loaded.device)[None]
    forward(
        loaded.model, input_ids=tokens, position_ids=positions, logit_rows=tokens[0], step=probe
    )
    return probe


def forward(
    model: nn.Module,
    *,
    input_ids: Tensor,
    position_ids: Tensor,
    logit_rows: Tensor,
    step: AttentionStep,
) -> Tensor:
    """``[len(logit_rows), vocab]`` logits, in the model's dtype."""
    out = model(
        input_ids=input_ids,
        position_ids=position_ids,
        use_cache=False,
        logits_to_keep=logit_rows,
        step=step,
    )
    logits: Tensor = out.logits[0]
    return logits
