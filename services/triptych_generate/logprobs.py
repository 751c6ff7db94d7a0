"""Integer logprobs of sampled and of prompt tokens. Source of all rules: logprobs.md, section 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.logprobs import MIN_LOGPROB, Logprobs, pack_logprobs
from triptych.wire import SamplingParams
from triptych_generate.ranking import best_ids, ranks_of

#: Prompt rows that are scored at once: bounds the memory of their log-softmax.
_ROWS_AT_ONCE = 64

_Entry = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which candidates one position reports after its sampled token.

    Attributes:
        num_best: how many of the best; of the best among ``among_ids`` where those are given.
        label_ids: these ids instead of the best, in this order.
    """

    num_best: int
    among_ids: tuple[int, ...] | None = None
    label_ids: tuple[int, ...] | None = None


def wanted_for_output(params: SamplingParams, vocab_size: int) -> Wanted | None:
    """What ``params`` ask of each output token; None: nothing is computed."""
    labels = params.logprob_token_ids
    if params.logprobs is None and labels is None:
        return None
    num_best = _count(params.logprobs or 0, vocab_size)
    allowed = params.allowed_token_ids
    return Wanted(
        num_best,
        None if allowed is None else tuple(sorted(set(allowed))),
        None if labels is None else tuple(labels),
    )


def wanted_for_prompt(params: SamplingParams, vocab_size: int) -> Wanted | None:
    """What ``params`` ask of each prompt token."""
    if params.prompt_logprobs is None:
        return None
    return Wanted(_count(params.prompt_logprobs, vocab_size))


def score(logits: Tensor, token_ids: list[int], wanted: list[Wanted]) -> list[Logprobs]:
    """One position of logprobs per row of ``logits`` ``[rows, vocab]`` float32.

    The values are the log-softmax (nats), each rank is 1 + the number of strictly greater ones.
    The row's own token of ``token_ids`` comes first; ties go to the lower id.
    """
    values = torch.log_softmax(logits, dim=-1)
    own = torch.tensor(token_ids, device=values.device)[:, None]
    own_values = values.gather(1, own)
    own_ranks = (values > own_values).sum(-1) + 1
    own_entries = _entries(own[:, 0], own_values[:, 0], own_ranks)
    best = _best_entries(values, wanted)
    return [
        pack_logprobs([[own_entries[row], *_others(values[row], one, best[row])]])
        for row, one in enumerate(wanted)
    ]


def score_prompt(logits: Tensor, token_ids: list[int], wanted: Wanted) -> list[Logprobs]:
    """``score`` for consecutive prompt positions, a bounded number of rows at once."""
    scored: list[Logprobs] = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        ids = token_ids[rows]
        scored += score(logits[rows].float(), ids, [wanted] * len(ids))
    return scored


def _count(asked: int, vocab_size: int) -> int:
    return vocab_size if asked == -1 else min(asked, vocab_size)


def _best_entries(values: Tensor, wanted: list[Wanted]) -> list[list[_Entry]]:
    """The best entries of each row that wants the best of the whole vocabulary."""
    counts = [_num_vocabulary_best(one) for one in wanted]
    most = max(counts)
    if most == 0:
        return [[] for _ in wanted]
    rows = [row for row, count in enumerate(counts) if count]
    chosen = values if len(rows) == len(values) else values[rows]
    ids = best_ids(chosen, most)
    best = chosen.gather(1, ids)
    # All greater entries of the vocabulary are among the best, so counting there is enough.
    ranks = torch.searchsorted(-best, -best) + 1
    entries: list[list[_Entry]] = [[] for _ in wanted]
    for index, row in enumerate(rows):
        count = counts[row]
        entries[row] = _entries(ids[index, :count], best[index, :count], ranks[index, :count])
    return entries


def _num_vocabulary_best(wanted: Wanted) -> int:
    return wanted.num_best if wanted.label_ids is None and wanted.among_ids is None else 0


def _others(values: Tensor, wanted: Wanted, best: list[_Entry]) -> list[_Entry]:
    """What follows the sampled token in one row."""
    if wanted.label_ids is not None:
        labels = torch.tensor(wanted.label_ids, dtype=torch.long, device=values.device)
        return _entries_of_ids(values, labels)
    if wanted.among_ids is not None and wanted.num_best:
        among = torch.tensor(wanted.among_ids, device=values.device)
        order = values[among].sort(descending=True, stable=True).indices
        return _entries_of_ids(values, among[order[: wanted.num_best]])
    return best


def _entries_of_ids(values: Tensor, ids: Tensor) -> list[_Entry]:
    chosen = values[ids]
    return _entries(ids, chosen, ranks_of(values, chosen))


def _entries(ids: Tensor, values: Tensor, ranks: Tensor) -> list[_Entry]:
    finite = values.clamp(min=MIN_LOGPROB)
    return list(zip(ids.tolist(), finite.tolist(), ranks.tolist(), strict=True))
