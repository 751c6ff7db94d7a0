"""Which tokens a sequence's grammar allows next."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triptych_generate.bindings import native

#: Processor time (seconds) that one output position may take. An ambiguous grammar can take
#: longer with every token, and all requests wait for a step.
MAX_POSITION_S = 0.1
#: The same for all of the output that a request resumes from, which no step waits for.
MAX_RESUME_S = 1.0


class Constraint:
    """Follows one sequence's output through a compiled grammar. One thread at a time.

    Nothing but the output ids moves it, so a sequence that is computed again, or taken over from
    another worker, continues where its ids are.
    """

    def __init__(self, compiled: Any, *, vocab_size: int, end_ids: set[int]) -> None:
        """``end_ids`` may be sampled where the grammar may end; ``vocab_size``: logits of a row."""
        self._matcher = native().GrammarMatcher(compiled, None, False, -1, None)
        self._end_ids = sorted(end_ids)
        self._vocab_size = vocab_size
        # The bit after the vocabulary's is the end marker's.
        self._words = np.zeros((1, vocab_size // 32 + 1), dtype=np.int32)
        self._num_seen = 0
        self.may_end = False
        self.is_too_slow = False

    def follow(self, output_ids: list[int], limit_s: float = MAX_RESUME_S) -> int | None:
        """Take the ids that are new since the last call; the position of one that does not fit.

        Ends early, with ``is_too_slow`` set, after ``limit_s`` seconds of processor time.
        """
        end_s = time.thread_time() + limit_s
        while self._num_seen < len(output_ids) and not self.is_too_slow:
            if not self._matcher.accept_token(output_ids[self._num_seen], False):
                return self._num_seen
            self._num_seen += 1
            self.is_too_slow = time.thread_time() > end_s
        return None

    def allowed(self, output_ids: list[int]) -> NDArray[np.bool_]:
        """``[vocab_size]``: what may follow ``output_ids``, end tokens included where they may.

        Sets ``may_end``. Where ``is_too_slow`` is set, nothing is allowed.
        """
        refused = self.follow(output_ids, MAX_POSITION_S)
        assert refused is None, "sampled tokens and checked ones fit the grammar"
        if self.is_too_slow:
            return np.zeros(self._vocab_size, dtype=np.bool_)
        start_s = time.thread_time()
        self._matcher.fill_next_token_bitmask(self._words, 0, False)
        bits = np.unpackbits(self._words.view(np.uint8)[0], bitorder="little")
        self.may_end = bool(bits[self._vocab_size])
        allowed = bits[: self._vocab_size].astype(np.bool_)
        allowed[self._end_ids] |= self.may_end
        self.is_too_slow = time.thread_time() - start_s > MAX_POSITION_S
        return allowed
