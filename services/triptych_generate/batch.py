"""One step's ragged batch in plain numbers: every slice's tokens in one row of ids."""

from dataclasses import dataclass

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


def tiles_of(layout: Layout, most_rows: int) -> list[tuple[int, int, int, int]]:
    """Attention tiles of at most ``most_rows`` rows: consecutive positions of one sequence.

    Each is its first row, number of rows, sequence (index in ``slices``), and the position of its
    first row.
    """
    tiles, first_row = [], 0
    for table, part in enumerate(layout.slices):
        for start in range(0, part.num_tokens, most_rows):
            num_rows = min(most_rows, part.num_tokens - start)
            position = part.sequence.num_computed + start
            tiles.append((first_row + start, num_rows, table, position))
        first_row += part.num_tokens
    return tiles
