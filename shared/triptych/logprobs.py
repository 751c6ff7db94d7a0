"""Integer logprobs as packed columns: the one form between generate and derender.

The nested JSON form (an object per candidate) exists only at JSON edges, in ``json_bodies``.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

#: What leaves instead of minus infinity, before any encoder sees it (logprobs.md, section 1).
MIN_LOGPROB = -9999.0


class Candidate(NamedTuple):
    """One vocabulary entry at one position: id, natural-log float32 value, true rank from 1."""

    token_id: int
    logprob: float
    rank: int


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates of consecutive positions, flattened.

    Position ``i`` owns ``counts[i]`` entries of the three other columns, the sampled (or prompt)
    token first, then the others in generate's order, no id twice. ``counts[i] == 0`` means that
    the position has no score (the first prompt token).
    """

    counts: list[int]
    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]

    def __len__(self) -> int:
        return len(self.counts)

    def positions(self) -> Iterator[list[Candidate]]:
        """Each position's candidates, sampled token first; empty where there is no score."""
        start = 0
        for count in self.counts:
            end = start + count
            yield list(
                map(
                    Candidate,
                    self.token_ids[start:end],
                    self.logprobs[start:end],
                    self.ranks[start:end],
                )
            )
            start = end

    def head(self, num_positions: int) -> "Logprobs":
        """The first ``num_positions`` positions."""
        end = sum(self.counts[:num_positions])
        return Logprobs(
            counts=self.counts[:num_positions],
            token_ids=self.token_ids[:end],
            logprobs=self.logprobs[:end],
            ranks=self.ranks[:end],
        )


def pack_logprobs(positions: Iterable[Iterable[tuple[int, float, int]]]) -> Logprobs:
    """Columns of ``positions``; within a position a repeated id keeps its first entry."""
    columns = Logprobs(counts=[], token_ids=[], logprobs=[], ranks=[])
    for candidates in positions:
        seen: set[int] = set()
        for token_id, logprob, rank in candidates:
            if token_id in seen:
                continue
            seen.add(token_id)
            columns.token_ids.append(token_id)
            columns.logprobs.append(logprob)
            columns.ranks.append(rank)
        columns.counts.append(len(seen))
    return columns


def join_logprobs(parts: Iterable[Logprobs]) -> Logprobs:
    """One run of columns from several, in order."""
    joined = Logprobs(counts=[], token_ids=[], logprobs=[], ranks=[])
    for part in parts:
        joined.counts.extend(part.counts)
        joined.token_ids.extend(part.token_ids)
        joined.logprobs.extend(part.logprobs)
        joined.ranks.extend(part.ranks)
    return joined
