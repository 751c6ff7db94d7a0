"""Integer logprobs of sampled and of prompt tokens. Source of all rules: logprobs.md, section 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.logprobs import MIN_LOGPROB, Logprobs, pack_logprobs
from triptych.wire import SamplingParams
from triptych_generate.host_copies import ids_on, to_host
from triptych_generate.native import Kernels
from triptych_generate.ranking import ranks_of, survey, values_of

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

    @property
    def others(self) -> tuple[int, ...] | None:
        """The ids that may follow the own token; None: any."""
        return self.among_ids if self.label_ids is None else self.label_ids


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


def score(
    logits: Tensor, token_ids: list[int], wanted: list[Wanted], kernels: Kernels | None
) -> list[Logprobs]:
    """One position of logprobs per row of ``logits`` ``[rows, vocab]`` float32.

    The values are the log-softmax (nats), each rank is 1 + the number of strictly greater ones.
    The row's own token of ``token_ids`` comes first; ties go to the lower id.
    """
    own = torch.tensor(token_ids, device=logits.device)
    found = survey(logits, own, max(map(_num_vocabulary_best, wanted)), kernels)
    columns = to_host(found.ids, found.values.clamp(min=MIN_LOGPROB), found.ranks, found.places)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    scored = []
    for row, (ids, values, ranks, place) in enumerate(rows):
        if wanted[row].others is None:
            kept = _own_and_best(place, wanted[row].num_best)
            scored.append(
                _position(*([column[i] for i in kept] for column in (ids, values, ranks)))
            )
        else:
            others = _others(logits[row], found.norms[row : row + 1], wanted[row])
            scored.append(pack_logprobs([[(ids[0], values[0], ranks[0]), *others]]))
    return scored


def _own_and_best(place: int, num_best: int) -> list[int]:
    """Columns of a survey's row: the own entry, then the best but for the own one."""
    return [0, *(1 + i for i in range(num_best) if i != place)]


def _position(token_ids: list[int], logprobs: list[float], ranks: list[int]) -> Logprobs:
    return Logprobs(counts=[len(token_ids)], token_ids=token_ids, logprobs=logprobs, ranks=ranks)


def _count(asked: int, vocab_size: int) -> int:
    return vocab_size if asked == -1 else min(asked, vocab_size)


def _num_vocabulary_best(wanted: Wanted) -> int:
    return wanted.num_best if wanted.others is None else 0


def _others(logits: Tensor, norms: Tensor, wanted: Wanted) -> list[_Entry]:
    """What follows the sampled token in a row ``[vocab]`` that wants chosen ids."""
    if wanted.label_ids is not None:
        return _entries_of_ids(logits, norms, ids_on(logits.device, wanted.label_ids))
    among = ids_on(logits.device, wanted.among_ids or ())
    order = logits[among].sort(descending=True, stable=True).indices
    return _entries_of_ids(logits, norms, among[order[: wanted.num_best]])


def _entries_of_ids(logits: Tensor, norms: Tensor, ids: Tensor) -> list[_Entry]:
    chosen = logits[ids]
    values = values_of(chosen[None], norms)[0].clamp(min=MIN_LOGPROB)
    columns = to_host(ids, values, ranks_of(logits, chosen))
    return list(zip(*(column.tolist() for column in columns), strict=True))
