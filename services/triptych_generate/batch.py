"""One step's ragged batch: every slice's tokens in one row of ids, and which logits are needed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych_generate.attention import Span, StepLayout
from triptych_generate.scheduler import Plan
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Prompt positions of one sequence that this step scores, in the order of their logits."""

    sequence: Sequence
    positions: range


@dataclass(frozen=True, slots=True)
class Batch:
    """A forward's arguments, rows padded to the model's row multiple.

    ``logit_rows``: the rows whose logits are needed: first one for each of ``samplers``, then
    those of ``prompts``, then padding.
    """

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    layout: StepLayout
    samplers: list[Sequence]
    prompts: list[PromptRows]

    @property
    def num_logits(self) -> int:
        return len(self.samplers) + sum(len(rows.positions) for rows in self.prompts)


def make_batch(plan: Plan, *, block_size: int, row_multiple: int, device: torch.device) -> Batch:
    """The batch of a step, decodes first."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    sample_rows: list[int] = []
    prompt_rows: list[int] = []
    samplers: list[Sequence] = []
    prompts: list[PromptRows] = []
    for part in plan.slices:
        sequence, first_row, start = part.sequence, len(ids), part.sequence.num_computed
        end = start + part.num_tokens
        spans.append(Span(first_row, part.num_tokens, len(spans), start))
        ids += sequence.token_ids[start:end]
        positions += range(start, end)
        slots += _slots(sequence.block_ids, start, end, block_size)
        if scored := sequence.prompt_positions_to_score(part.num_tokens):
            prompts.append(PromptRows(sequence, scored))
            prompt_rows += [first_row + position - 1 - start for position in scored]
        if end == len(sequence.token_ids) and not sequence.is_full:
            samplers.append(sequence)
            sample_rows.append(first_row + part.num_tokens - 1)
    padding = [0] * (-len(ids) % row_multiple)
    logit_rows = sample_rows + prompt_rows
    logit_rows += [0] * (-len(logit_rows) % row_multiple or (not logit_rows) * row_multiple)
    return Batch(
        input_ids=torch.tensor([ids + padding], device=device),
        position_ids=torch.tensor([positions + padding], device=device),
        logit_rows=torch.tensor(logit_rows, device=device),
        layout=StepLayout(
            slots=slots,
            tables=[part.sequence.block_ids for part in plan.slices],
            spans=spans,
            num_decodes=sum(part.is_decode for part in plan.slices),
            new_blocks=plan.new_blocks,
        ),
        samplers=samplers,
        prompts=prompts,
    )


def _slots(block_ids: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Where positions ``start`` to ``end`` are stored: ``block * block_size + offset``."""
    return [
        block_ids[position // block_size] * block_size + position % block_size
        for position in range(start, end)
    ]
