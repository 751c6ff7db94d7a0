"""Prompt logprobs of one KV block's tokens, kept with the block for later requests."""

from array import array
from collections.abc import Iterable

from triptych.logprobs import Candidate, Logprobs, join_logprobs, pack_logprobs

#: Most candidates per token that are kept beside the token itself. It bounds the memory: 12 bytes
#: per candidate, 25 KB per block of 64 tokens. Requests that ask for more are always computed.
MAX_KEPT_BEST = 32


class KeptScores:
    """The own candidate and the ``num_best`` best of consecutive prompt tokens, 12 bytes each.

    They answer every request for ``num_best`` or fewer: the best are in falling order, so fewer of
    them are a part of them.
    """

    def __init__(self, positions: Iterable[Logprobs], num_best: int) -> None:
        """``positions`` hold one position each, scored with ``num_best`` best candidates."""
        columns = join_logprobs(positions)
        self.num_best = num_best
        self._counts = array("I", columns.counts)
        self._token_ids = array("I", columns.token_ids)
        self._logprobs = array("f", columns.logprobs)
        self._ranks = array("I", columns.ranks)

    def best(self, num_best: int) -> list[Logprobs]:
        """One position each, as if scored with ``num_best``, at most what is kept."""
        columns = Logprobs(
            counts=self._counts.tolist(),
            token_ids=self._token_ids.tolist(),
            logprobs=self._logprobs.tolist(),
            ranks=self._ranks.tolist(),
        )
        return [pack_logprobs([_cut(own, num_best)]) for own in columns.positions()]


def _cut(candidates: list[Candidate], num_best: int) -> list[Candidate]:
    """The own candidate, then the best but the own one. The order is rank, then the lower id."""
    own, *others = candidates
    num_ahead = sum((one.rank, one.token_id) < (own.rank, own.token_id) for one in others)
    return [own, *others[: num_best - (num_ahead < num_best)]]
