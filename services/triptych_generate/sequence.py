"""The engine's state of one sequence: one choice of one request."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from triptych.logprobs import Logprobs
from triptych.wire import FinishReason, SamplingParams


class TokenConstraint(Protocol):
    """What a sequence's grammar lets it sample next; ``constraint`` has the one there is."""

    may_end: bool
    is_too_slow: bool

    def allowed(self, output_ids: list[int]) -> Any: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, KV blocks and progress.

    ``token_ids`` is the prompt, then the output. A sequence is up to date when all but its newest
    token are computed: then a step computes that one and samples the next (a decode).

    Attributes:
        request_key: the engine's number of the request, unique in the process and rising.
        choice_index: names the choice in the answer and, with the seed, its draws.
        prompt_len: tokens of the prompt proper; resumed output is not part of it.
        max_len: the sequence ends with ``length`` when it has this many tokens.
        seed: with the choice index and the output position it fixes every draw.
        eos_token_ids: end the sequence unless the request ignores them.
        scores_prompt: prompt logprobs are wanted of this sequence.
        cache_salt: cached prefixes are shared only under the same salt.
        order: lower runs first: priority, then arrival, then choice.
        num_computed: leading tokens whose keys and values are in ``block_ids``.
        prompt_scores: one position each, of the prompt's tokens from the second on.
        block_keys: names of the leading whole blocks (see ``prefix_cache``).
        tail_key: the name of the tokens behind them, until that block is published.
        num_published: leading whole blocks that others can find.
        num_scores_kept: leading blocks whose prompt scores are kept for others.
        num_cached: tokens of the blocks that the sequence shared when it first began; None before
            that, and without a prefix cache.
        num_expected: tokens that were cached when the sequence began to wait; 0 once it runs.
        num_overtaken: how many sequences began while this one waited for blocks.
        constraint: follows the output through the request's grammar; None where there is none.
        scorer: the choice that scores their prompt, which comes first; None: not another one.
    """

    request_key: int
    choice_index: int
    token_ids: list[int]
    prompt_len: int
    max_len: int
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    scores_prompt: bool = False
    cache_salt: str | None = None
    order: tuple[int, int, int] = field(init=False)
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    prompt_scores: list[Logprobs] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    tail_key: bytes | None = None
    num_published: int = 0
    num_scores_kept: int = 0
    num_cached: int | None = None
    num_expected: int = 0
    num_overtaken: int = 0
    constraint: TokenConstraint | None = None
    scorer: "Sequence | None" = None

    def __post_init__(self) -> None:
        self.order = (self.priority, self.request_key, self.choice_index)

    @property
    def num_scored(self) -> int:
        """Leading tokens whose prompt logprobs are made (the first has none)."""
        return len(self.prompt_scores) + 1

    @property
    def awaits_scores(self) -> bool:
        """Its first output would leave before the prompt's scores, which come with the first."""
        return self.scorer is not None and self.scorer.num_scored < self.prompt_len

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def is_full(self) -> bool:
        """No further token may be sampled."""
        return len(self.token_ids) >= self.max_len

    @property
    def must_not_stop(self) -> bool:
        """``min_tokens`` is not reached: EOS and stop tokens cannot be sampled."""
        return self.num_output < self.params.min_tokens

    def stop_ids(self) -> set[int]:
        """Ids that end the sequence when sampled."""
        eos = () if self.params.ignore_eos else self.eos_token_ids
        return {*self.params.stop_token_ids, *eos}

    def is_eos(self, token_id: int) -> bool:
        return token_id in self.eos_token_ids and not self.params.ignore_eos

    def prompt_positions_to_score(self, num_tokens: int) -> range:
        """Prompt positions whose logits the next ``num_tokens`` tokens give.

        The logits of token ``t - 1`` score the prompt token at ``t``. Recomputed tokens whose
        successors are scored already give nothing.
        """
        if not self.scores_prompt:
            return range(0)
        end = min(self.num_computed + num_tokens + 1, self.prompt_len)
        return range(max(self.num_scored, self.num_computed + 1), end)


def finish_reason(sequence: Sequence) -> tuple[FinishReason | None, int | None]:
    """Why the newest token ends the sequence, and the stop id if it is one other than EOS."""
    token_id = sequence.token_ids[-1]
    if sequence.num_output >= max(sequence.params.min_tokens, 1):
        if sequence.is_eos(token_id):
            return "stop", None
        if token_id in sequence.params.stop_token_ids:
            return "stop", token_id
    return ("length", None) if sequence.is_full else (None, None)
