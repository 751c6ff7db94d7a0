"""Decode steps recorded once per size and replayed: CUDA graphs, where launching costs the most.

A recording reads fixed buffers, so a step is padded to the next recorded size: padding rows have no
attention tile and store into the cache's trash block. Products and attention give a row the same
bits in every size (``triton_ops``, ``triton_attention``), so padding changes none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.batch import Layout
from triptych_generate.step_inputs import StepInputs, StepSizes

#: Blocks in the tables of the smallest recording.
_LEAST_TABLE_LEN = 8

#: Runs a call once, and returns what repeats it: the same tensors, with new values.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: StepInputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """Recordings by number of rows and length of tables, made when first needed."""

    def __init__(
        self,
        forward: Callable[[StepInputs], Tensor],
        capture: Capture,
        *,
        device: torch.device,
        trash_block: int,
        max_rows: int,
    ) -> None:
        self._forward = forward
        self._capture = capture
        self._device = device
        self._trash_block = trash_block
        self._max_rows = max_rows
        self._recordings: dict[StepSizes, _Recording] = {}

    def can_run(self, layout: Layout) -> bool:
        """Only decodes, and no more logits than rows."""
        num_rows = len(layout.token_ids)
        only_decodes = all(part.is_decode for part in layout.slices)
        return only_decodes and num_rows <= self._max_rows and layout.num_logits <= num_rows

    def logits(self, layout: Layout) -> Tensor:
        """``[num_logits, vocab]``, the caller's to keep."""
        sizes = self._sizes_for(layout)
        recording = self._recordings.get(sizes)
        if recording is None:
            recording = self._recordings[sizes] = self._record(sizes, layout)
        else:
            recording.inputs.load(layout, trash_block=self._trash_block)
        return recording.replay()[: layout.num_logits].clone()

    def _sizes_for(self, layout: Layout) -> StepSizes:
        num_rows = padded_rows(len(layout.token_ids), self._max_rows)
        longest = max(len(part.sequence.block_ids) for part in layout.slices)
        table_len = max(_LEAST_TABLE_LEN, 1 << (longest - 1).bit_length())
        return StepSizes(num_rows, num_rows, num_rows, table_len, num_rows)

    def _record(self, sizes: StepSizes, layout: Layout) -> _Recording:
        """The first run is of a real step: it may store, and what it stores is right."""
        inputs = StepInputs(sizes, self._device)
        inputs.load(layout, trash_block=self._trash_block)
        return _Recording(inputs, self._capture(lambda: self._forward(inputs)))


def padded_rows(num_rows: int, most: int) -> int:
    """The next recorded number of rows: 1, 2, 4, then multiples of 8; at most ``most``."""
    padded = 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // 8) * 8
    return min(padded, most)
