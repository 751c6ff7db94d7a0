"""Forwards whose attention is one kernel over the paged KV, on a device that has one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from triptych_generate.attention import Scoring
from triptych_generate.batch import Layout
from triptych_generate.decode_graphs import Capture, DecodeGraphs
from triptych_generate.kv_cache import KvCache
from triptych_generate.runner import forward
from triptych_generate.step_inputs import StepInputs, sizes_of

#: ``triton_attention.paged_attention`` or one with its arguments.
PagedAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Scoring], Tensor]


class KernelStep:
    """One step's ragged batch in each attention layer: keys and values stored, then the kernel."""

    def __init__(self, cache: KvCache, inputs: StepInputs, kernel: PagedAttention) -> None:
        self.kept_rows: Tensor | None = None
        self._cache = cache
        self._inputs = inputs
        self._kernel = kernel

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        inputs = self._inputs
        self._cache.write(layer, key=key, value=value, blocks=inputs.blocks, offsets=inputs.offsets)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return self._kernel(query, keys, values, inputs.tables, inputs.tiles, scoring)


class KernelSteps:
    """The logits of steps. With ``capture``, steps that only decode are recorded and replayed."""

    reads_whole_blocks = False

    def __init__(
        self,
        model: nn.Module,
        cache: KvCache,
        kernel: PagedAttention,
        *,
        device: torch.device,
        max_num_sequences: int,
        capture: Capture | None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._kernel = kernel
        self._device = device
        self._graphs = None
        if capture is not None:
            self._graphs = DecodeGraphs(
                self._forward,
                capture,
                device=device,
                trash_block=cache.trash_block,
                max_rows=max_num_sequences,
            )

    def logits(self, layout: Layout) -> Tensor:
        """``[num_logits, vocab]`` in the model's dtype; the caller's to keep."""
        if self._graphs is not None and self._graphs.can_run(layout):
            return self._graphs.logits(layout)
        inputs = StepInputs(sizes_of(layout), self._device)
        inputs.load(layout, trash_block=self._cache.trash_block)
        return self._forward(inputs)[: layout.num_logits]

    def _forward(self, inputs: StepInputs) -> Tensor:
        return forward(
            self._model,
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            logit_rows=inputs.logit_rows,
            step=KernelStep(self._cache, inputs, self._kernel),
        )
