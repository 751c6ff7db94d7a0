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
class Batch:
    """A forward's arguments, rows padded to the model's row multiple.

    ``logit_rows``: the rows whose logits are needed: first one for each of ``samplers``, then
    those of ``prompts``, then padding.
    """

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    step: PagedStep
    samplers: list[Sequence]
    prompts: list[PromptRows]

    @property
    def num_logits(self) -> int:
        return len(self.samplers) + sum(len(rows.positions) for rows in self.prompts)


def make_batch(
    slices: list[Slice], cache: KvCache, *, row_multiple: int, device: torch.device
) -> Batch:
    """The batch of a step, decodes first."""
    ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    sample_rows: list[int] = []
    prompt_rows: list[int] = []
    samplers: list[Sequence] = []
    prompts: list[PromptRows] = []
    chunks: list[PrefillChunk] = []
    for part in slices:
        sequence, first_row, start = part.sequence, len(ids), part.sequence.num_computed
        end = start + part.num_tokens
        ids += sequence.token_ids[start:end]
        positions += range(start, end)
        blocks += [sequence.block_ids[p // cache.block_size] for p in range(start, end)]
        if not part.is_decode:
            chunks.append(
                PrefillChunk(
                    first_row=first_row,
                    num_tokens=part.num_tokens,
                    position=start,
                    block_ids=sequence.block_ids,
                    block_size=cache.block_size,
                    device=device,
                )
            )
        if scored := sequence.prompt_positions_to_score(part.num_tokens):
            prompts.append(PromptRows(sequence, scored))
            prompt_rows += [first_row + position - 1 - start for position in scored]
        if end == len(sequence.token_ids) and not sequence.is_full:
            samplers.append(sequence)
            sample_rows.append(first_row + part.num_tokens - 1)
    decodes = [part.sequence for part in slices if part.is_decode]
    padding = [0] * (-len(ids) % row_multiple)
    logit_rows = sample_rows + prompt_rows
    logit_rows += [0] * (-len(logit_rows) % row_multiple or (not logit_rows) * row_multiple)
    return Batch(
        input_ids=torch.tensor([ids + padding], device=device),
        position_ids=torch.tensor([positions + padding], device=device),
        logit_rows=torch.tensor(logit_rows, device=device),
        step=PagedStep(
            cache,
            blocks=torch.tensor(blocks, device=device),
            offsets=torch.tensor([p % cache.block_size for p in positions], device=device),
            decodes=DecodeGroup(
                [sequence.num_computed for sequence in decodes],
                [sequence.block_ids for sequence in decodes],
                block_size=cache.block_size,
                device=device,
            ),
            chunks=chunks,
        ),
        samplers=samplers,
        prompts=prompts,
    )
