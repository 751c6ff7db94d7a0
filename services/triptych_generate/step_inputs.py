"""The integers that a kernel-driven step needs on its device, in one buffer that one copy moves."""

from dataclasses import dataclass

import torch

from triptych_generate.batch import Layout, tiles_of

#: Rows of an attention tile, which a kernel may cut further.
TILE_ROWS = 32


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How many rows, logits, tables of how many blocks, and tiles a buffer has room for."""

    num_rows: int
    num_logits: int
    num_tables: int
    table_len: int
    num_tiles: int


class StepInputs:
    """Views of one int64 buffer.

    Attributes:
        input_ids, position_ids: ``[1, rows]``.
        logit_rows: ``[logits]``: the rows whose logits are needed.
        blocks, offsets: ``[rows]``: where each row's keys and values are stored.
        tables, tiles: int32, see ``triton_attention.paged_attention``.
    """

    def __init__(self, sizes: StepSizes, device: torch.device, *, is_pinned: bool = False) -> None:
        rows, logits = sizes.num_rows, sizes.num_logits
        table_ids, tile_ids = sizes.num_tables * sizes.table_len, sizes.num_tiles * 4
        lengths = [rows, rows, logits, rows, rows, -(-table_ids // 2), tile_ids // 2]
        self.sizes = sizes
        self.buffer = torch.zeros(
            sum(lengths), dtype=torch.int64, device=device, pin_memory=is_pinned
        )
        ids, positions, logit_rows, blocks, offsets, tables, tiles = torch.split(
            self.buffer, lengths
        )
        self.input_ids, self.position_ids = ids[None], positions[None]
        self.logit_rows, self.blocks, self.offsets = logit_rows, blocks, offsets
        flat = tables.view(torch.int32)[:table_ids]
        self.tables = flat.view(sizes.num_tables, sizes.table_len)
        self.tiles = tiles.view(torch.int32).view(sizes.num_tiles, 4)

    def load(self, layout: Layout, *, trash_block: int) -> None:
        """Fill the buffer with a step. Padding rows have no tile and store into ``trash_block``.

        On a device by one copy from pinned memory, which torch keeps until the copy is done.
        """
        is_pinned = self.buffer.device.type == "cuda"
        host = StepInputs(self.sizes, torch.device("cpu"), is_pinned=is_pinned)
        host._fill(layout, trash_block)
        self.buffer.copy_(host.buffer, non_blocking=True)

    def _fill(self, layout: Layout, trash_block: int) -> None:
        num_rows = len(layout.token_ids)
        self.input_ids[0, :num_rows] = torch.tensor(layout.token_ids)
        self.position_ids[0, :num_rows] = torch.tensor(layout.positions)
        self.logit_rows[: layout.num_logits] = torch.tensor(layout.logit_rows, dtype=torch.int64)
        self.blocks.fill_(trash_block)
        self.blocks[:num_rows] = torch.tensor(layout.blocks)
        self.offsets[:num_rows] = torch.tensor(layout.offsets)
        for row, part in enumerate(layout.slices):
            block_ids = part.sequence.block_ids
            self.tables[row, : len(block_ids)] = torch.tensor(block_ids)
        tiles = tiles_of(layout, TILE_ROWS)
        self.tiles[: len(tiles)] = torch.tensor(tiles)


def sizes_of(layout: Layout) -> StepSizes:
    """Room for exactly this step; one row of logits at least, because models take no fewer."""
    return StepSizes(
        num_rows=len(layout.token_ids),
        num_logits=max(1, layout.num_logits),
        num_tables=len(layout.slices),
        table_len=max(len(part.sequence.block_ids) for part in layout.slices),
        num_tiles=len(tiles_of(layout, TILE_ROWS)),
    )
