"""Runs the model over one step's batch."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triptych_generate.attention import IMPLEMENTATION, AttentionStep, ShapeProbe
from triptych_generate.batch import PromptRows, make_batch
from triptych_generate.experts import IMPLEMENTATION as EXPERTS_IMPLEMENTATION
from triptych_generate.kv_cache import KvCache, LayerShape
from triptych_generate.linears import row_multiple
from triptych_generate.loader import LoadedModel
from triptych_generate.scheduler import Plan
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Float32 logits of one step: a row per sequence that samples, then the prompts' rows."""

    samplers: list[Sequence]
    sample_logits: Tensor
    prompts: list[PromptRows]
    prompt_logits: Tensor


class Runner:
    """A model with paged attention and its KV cache. One thread at a time."""

    def __init__(self, loaded: LoadedModel, cache: KvCache) -> None:
        """``loaded`` must have been given to ``use_paged_attention``."""
        self._loaded = loaded
        self._cache = cache
        self._row_multiple = row_multiple(loaded.model)

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepLogits:
        """The logits that the plan's sequences need next."""
        if plan.copies:
            self._cache.copy(plan.copies)
        if plan.new_blocks:
            self._cache.clear(plan.new_blocks)
        batch = make_batch(
            plan.slices,
            self._cache,
            row_multiple=self._row_multiple,
            device=self._loaded.device,
        )
        logits = forward(
            self._loaded.model,
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            logit_rows=batch.logit_rows,
            step=batch.step,
        )
        num_samplers = len(batch.samplers)
        return StepLogits(
            samplers=batch.samplers,
            sample_logits=logits[:num_samplers].float(),
            prompts=batch.prompts,
            prompt_logits=logits[num_samplers : batch.num_logits],
        )


def use_paged_attention(loaded: LoadedModel) -> None:
    """Switch the model from transformers' attention and experts to the engine's."""
    loaded.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    if loaded.model._can_set_experts_implementation():  # type: ignore[operator]
        loaded.model.set_experts_implementation(EXPERTS_IMPLEMENTATION)  # type: ignore[operator]


@torch.inference_mode()
def probe_shapes(loaded: LoadedModel) -> dict[int, LayerShape]:
    """What each attention layer stores per token, from one small forward."""
    probe = ShapeProbe()
    tokens = torch.zeros(1, 4, dtype=torch.long, device=loaded.device)
    positions = torch.arange(4, device=loaded.device)[None]
    forward(
        loaded.model, input_ids=tokens, position_ids=positions, logit_rows=tokens[0], step=probe
    )
    return probe.shapes


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
