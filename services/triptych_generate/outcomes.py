"""What a step's logits mean: each sequence's next token with its logprobs, and prompt scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.errors import InternalError, InvalidRequestError, TriptychError
from triptych.logprobs import Logprobs
from triptych_generate.constraint import MAX_POSITION_S
from triptych_generate.logprobs import (
    Wanted,
    score,
    wanted_for_output,
    wanted_for_prompt,
)
from triptych_generate.masks import Draw, draw_of
from triptych_generate.native import Kernels
from triptych_generate.runner import StepLogits
from triptych_generate.sampler import (
    BadLogitsError,
    NothingAllowedError,
    Sampled,
    processed_logits,
    sample,
)
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The next token of one sequence, the error that ends its request, or its end without a token.

    ``is_end``: its grammar may end here, and nothing can be sampled: EOS is ignored, not allowed,
    or too early.
    """

    sequence: Sequence
    token_id: int | None = None
    logprobs: Logprobs | None = None
    error: TriptychError | None = None
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Logprobs of consecutive prompt positions of one sequence, or the request's error."""

    sequence: Sequence
    parts: list[Logprobs]
    error: TriptychError | None = None


@torch.inference_mode()
def next_tokens(step: StepLogits) -> list[Outcome]:
    """The outcome of every sequence that samples in this step, in the order of its rows."""
    if not step.samplers:
        return []
    draws = [draw_of(sequence) for sequence in step.samplers]
    sampled = sample(step.sample_logits, draws, step.kernels)
    logprobs = _logprobs_of(step, draws, sampled)
    return [
        _outcome_of(sequence, sampled[row], draws[row], logprobs.get(row))
        for row, sequence in enumerate(step.samplers)
    ]


@torch.inference_mode()
def prompt_scores(step: StepLogits) -> list[PromptScores]:
    """The scores of all prompt positions whose logits this step gave."""
    scores, start = [], 0
    for rows in step.prompts:
        logits = step.prompt_logits[start : start + len(rows.positions)]
        start += len(rows.positions)
        scores.append(_prompt_scores_of(rows.sequence, rows.positions, logits, step.kernels))
    return scores


def _outcome_of(
    sequence: Sequence, sampled: Sampled, draw: Draw, logprobs: Logprobs | None
) -> Outcome:
    constraint = sequence.constraint
    if constraint is not None and constraint.is_too_slow:
        return Outcome(sequence, error=_too_slow(draw))
    if sampled.error is None:
        return Outcome(sequence, token_id=sampled.token_id, logprobs=logprobs)
    is_nothing_allowed = isinstance(sampled.error, NothingAllowedError)
    if constraint is not None and constraint.may_end and is_nothing_allowed:
        return Outcome(sequence, is_end=True)
    return Outcome(sequence, error=_error_of(sampled.error, draw))


def _prompt_scores_of(
    sequence: Sequence, positions: range, logits: Tensor, kernels: Kernels | None
) -> PromptScores:
    wanted = wanted_for_prompt(sequence.params, logits.shape[1])
    assert wanted is not None, "only sequences that score their prompt have prompt rows"
    if not bool(logits.amax(-1).isfinite().all()):
        return PromptScores(sequence, [], InternalError(_bad_logits("in the prompt")))
    token_ids = [sequence.token_ids[position] for position in positions]
    return PromptScores(
        sequence, score(logits.float(), token_ids, [wanted] * len(token_ids), kernels)
    )


def _logprobs_of(
    step: StepLogits, draws: list[Draw], sampled: list[Sampled]
) -> dict[int, Logprobs]:
    """Logprobs by row, for the rows that ask for them and have a token."""
    logits = step.sample_logits
    asked: dict[int, Wanted] = {}
    for row, draw in enumerate(draws):
        wanted = wanted_for_output(draw.params, logits.shape[1])
        if wanted is not None and sampled[row].token_id is not None:
            asked[row] = wanted
    if not asked:
        return {}
    rows = list(asked)
    source = (logits if len(rows) == len(logits) else logits[rows]).float()
    if any(draws[row].params.logprobs_mode == "processed" for row in rows):
        source = torch.stack([_scored_row(source[i], draws[row]) for i, row in enumerate(rows)])
    token_ids = [token_id for row in rows if (token_id := sampled[row].token_id) is not None]
    scored = score(source, token_ids, list(asked.values()), step.kernels)
    return dict(zip(rows, scored, strict=True))


def _scored_row(logits: Tensor, draw: Draw) -> Tensor:
    """``[vocab]`` on the device of ``logits``; what truncates runs on the host, as in sampling."""
    if draw.params.logprobs_mode != "processed":
        return logits
    return processed_logits(logits.cpu(), draw).to(logits.device)


def _too_slow(draw: Draw) -> TriptychError:
    return InvalidRequestError(
        f"structured_outputs takes too long to follow at output position {draw.position}: more "
        f"than {MAX_POSITION_S:g} s for one token; the grammar is too ambiguous",
        param="sampling_params.structured_outputs",
    )


def _error_of(error: NothingAllowedError | BadLogitsError, draw: Draw) -> TriptychError:
    if isinstance(error, NothingAllowedError):
        return InvalidRequestError(
            f"no token is allowed at output position {draw.position}: structured_outputs, "
            f"allowed_token_ids, bad words, min_tokens and bias together exclude the whole "
            f"vocabulary",
            param="sampling_params",
        )
    return InternalError(_bad_logits(f"at output position {draw.position}"))


def _bad_logits(where: str) -> str:
    return f"the model gave NaN or infinite logits {where}"
