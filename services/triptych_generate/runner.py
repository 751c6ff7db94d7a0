"""Runs the model over one step's batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from triptych_generate.attention import IMPLEMENTATION, AttentionStep, LayerProbe
from triptych_generate.batch import Layout, PromptRows, lay_out, tiles_of
from triptych_generate.experts import IMPLEMENTATION as EXPERTS_IMPLEMENTATION
from triptych_generate.fused import gives_kept_rows
from triptych_generate.kv_cache import KvCache
from triptych_generate.linears import row_multiple
from triptych_generate.loader import LoadedModel
from triptych_generate.native import Kernels
from triptych_generate.native_attention import TILE_ROWS, NativeStep, can_attend
from triptych_generate.scheduler import Plan
from triptych_generate.sequence import Sequence
from triptych_generate.torch_attention import TorchStep


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Logits of one step in the model's dtype: a row per sequence that samples, then the prompts'.

    ``kernels``: what they are scored with, where there are compiled ones.
    """

    samplers: list[Sequence]
    sample_logits: Tensor
    prompts: list[PromptRows]
    prompt_logits: Tensor
    kernels: Kernels | None = None


class Steps(Protocol):
    """How a device computes a step."""

    #: Masked keys are multiplied too, so a block must be zeroed when it changes its owner.
    reads_whole_blocks: bool

    def logits(self, layout: Layout) -> Tensor:
        """The layout's logit rows ``[num_logits, vocab]``, then perhaps padding rows."""


class Runner:
    """A model with paged attention and its KV cache. One thread at a time."""

    def __init__(self, loaded: LoadedModel, cache: KvCache, steps: Steps | None = None) -> None:
        """``loaded`` must have been given to ``use_paged_attention``."""
        self._cache = cache
        self._kernels = loaded.kernels
        self._steps = HostSteps(loaded, cache) if steps is None else steps

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepLogits:
        """The logits that the plan's sequences need next."""
        if plan.copies:
            self._cache.copy(plan.copies)
        if plan.new_blocks and self._steps.reads_whole_blocks:
            self._cache.clear(plan.new_blocks)
        layout = lay_out(plan.slices, self._cache.block_size)
        logits = self._steps.logits(layout)
        num_samplers = len(layout.samplers)
        return StepLogits(
            samplers=layout.samplers,
            sample_logits=logits[:num_samplers],
            prompts=layout.prompts,
            prompt_logits=logits[num_samplers : layout.num_logits],
            kernels=self._kernels,
        )


#: Makes a runner of a model on a cache of its own.
MakeRunner = Callable[[LoadedModel, KvCache], Runner]


class HostSteps:
    """Steps on the CPU: attention by the compiled kernel where there is one, else by torch."""

    def __init__(self, loaded: LoadedModel, cache: KvCache) -> None:
        self._loaded = loaded
        self._cache = cache
        self._kernels = loaded.kernels if can_attend(cache) else None
        self._row_multiple = row_multiple(loaded.model)
        self._gives_kept_rows = gives_kept_rows(loaded.model)
        self.reads_whole_blocks = self._kernels is None

    def logits(self, layout: Layout) -> Tensor:
        padding = [0] * (-len(layout.token_ids) % self._row_multiple)
        num_logits = max(1, layout.num_logits)
        logit_padding = [0] * (num_logits - layout.num_logits - num_logits % -self._row_multiple)
        logit_rows = torch.tensor(layout.logit_rows + logit_padding)
        step = self._step(layout, logit_rows)
        is_kept = self._gives_kept_rows and step.kept_rows is not None
        return forward(
            self._loaded.model,
            input_ids=torch.tensor([layout.token_ids + padding]),
            position_ids=torch.tensor([layout.positions + padding]),
            logit_rows=None if is_kept else logit_rows,
            step=step,
        )

    def _step(self, layout: Layout, logit_rows: Tensor) -> AttentionStep:
        if self._kernels is None:
            return TorchStep(self._cache, layout, self._loaded.device)
        size = self._cache.block_size
        places = zip(layout.blocks, layout.offsets, strict=True)
        return NativeStep(
            self._kernels,
            self._cache,
            slots=[block * size + offset for block, offset in places],
            tables=[part.sequence.block_ids for part in layout.slices],
            tiles=tiles_of(layout, TILE_ROWS),
            kept_rows=logit_rows,
        )


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
    logit_rows: Tensor | None,
    step: AttentionStep,
) -> Tensor:
    """``[len(logit_rows), vocab]`` logits, in the model's dtype; None: of all that come out."""
    out = model(
        input_ids=input_ids,
        position_ids=position_ids,
        use_cache=False,
        logits_to_keep=0 if logit_rows is None else logit_rows,  # 0: all, says transformers
        step=step,
    )
    logits: Tensor = out.logits[0]
    return logits
