"""One step's ragged batch: every slice's tokens in one row of ids, and which logits are needed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.attention import PagedStep
from triptych_generate.decodes import DecodeGroup
from triptych_generate.kv_cache import KvCache
from triptych_generate.prefill import PrefillChunk
from triptych_generate.scheduler import Slice
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Prompt positions of one sequence that this step scores, in the order of their logits."""

    sequence: Sequence
    positions: range


@dataclass(frozen=True, slots=True)
class Layout:
    """A step in plain numbers: one row per token, decodes first.

    ``blocks`` and ``offsets`` say where each row's keys and values are stored. ``logit_rows`` are
    the rows whose logits are needed: one for each of ``samplers``, then those of ``prompts``.
    """

    slices: list[Slice]
    token_ids: list[int]
    positions: list[int]
    blocks: list[int]
    offsets: list[int]
    logit_rows: list[int]
    samplers: list[Sequence]
    prompts: list[PromptRows]

    @property
    def num_logits(self) -> int:
        return len(self.logit_rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """A forward's arguments, rows and logit rows padded to the model's row multiple."""

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    step: PagedStep


def lay_out(slices: list[Slice], block_size: int) -> Layout:
    """The layout of a step's slices, decodes first."""
    token_ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    sample_rows: list[int] = []
    prompt_rows: list[int] = []
    samplers: list[Sequence] = []
    prompts: list[PromptRows] = []
    for part in slices:
        sequence, first_row, start = part.sequence, len(token_ids), part.sequence.num_computed
        end = start + part.num_tokens
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        blocks += [sequence.block_ids[p // block_size] for p in range(start, end)]
        if scored := sequence.prompt_positions_to_score(part.num_tokens):
            prompts.append(PromptRows(sequence, scored))
            prompt_rows += [first_row + position - 1 - start for position in scored]
        if end == len(sequence.token_ids) and not sequence.is_full:
            samplers.append(sequence)
            sample_rows.append(first_row + part.num_tokens - 1)
    return Layout(
        slices=slices,
        token_ids=token_ids,
        positions=positions,
        blocks=blocks,
        offsets=[p % block_size for p in positions],
        logit_rows=sample_rows + prompt_rows,
        samplers=samplers,
        prompts=prompts,
    )


def make_batch(layout: Layout, cache: KvCache, *, row_multiple: int, device: torch.device) -> Batch:
    """The batch of a step whose attention is torch's products."""
    padding = [0] * (-len(layout.token_ids) % row_multiple)
    num_logits = layout.num_logits
    logit_padding = -num_logits % row_multiple or (not num_logits) * row_multiple
    decodes = [part.sequence for part in layout.slices if part.is_decode]
    return Batch(
        input_ids=torch.tensor([layout.token_ids + padding], device=device),
        position_ids=torch.tensor([layout.positions + padding], device=device),
        logit_rows=torch.tensor(layout.logit_rows + [0] * logit_padding, device=device),
        step=PagedStep(
            cache,
            blocks=torch.tensor(layout.blocks, device=device),
            offsets=torch.tensor(layout.offsets, device=device),
            decodes=DecodeGroup(
                [sequence.num_computed for sequence in decodes],
                [sequence.block_ids for sequence in decodes],
                block_size=cache.block_size,
                device=device,
            ),
            chunks=_chunks(layout, cache.block_size, device),
        ),
    )


def _chunks(layout: Layout, block_size: int, device: torch.device) -> list[PrefillChunk]:
    chunks, first_row = [], 0
    for part in layout.slices:
        if not part.is_decode:
            chunk = PrefillChunk(
                first_row=first_row,
                num_tokens=part.num_tokens,
                position=part.sequence.num_computed,
                block_ids=part.sequence.block_ids,
                block_size=block_size,
                device=device,
            )
            chunks.append(chunk)
        first_row += part.num_tokens
    return chunks
