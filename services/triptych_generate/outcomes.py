"""What a step's logits mean: each sequence's next token with its logprobs, and prompt scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.errors import InternalError, InvalidRequestError, TriptychError
from triptych.logprobs import Logprobs
from triptych_generate.logprobs import (
    Wanted,
    score,
    wanted_for_output,
    wanted_for_prompt,
)
from triptych_generate.masks import Draw, draw_of
from triptych_generate.native import Kernels
from triptych_generate.runner import StepLogits
from triptych_generate.sampler import NothingAllowedError, Sampled, processed_logits, sample
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The next token of one sequence, or the error that ends its request."""

    sequence: Sequence
    token_id: int | None = None
    logprobs: Logprobs | None = None
    error: TriptychError | None = None


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
    sampled = sample(step.sample_logits, draws)
    logprobs = _logprobs_of(step, draws, sampled)
    return [
        Outcome(
            sequence,
            token_id=sampled[row].token_id,
            logprobs=logprobs.get(row),
            error=_error_of(sampled[row], draws[row]),
        )
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
    source = logits if len(rows) == len(logits) else logits[rows]
    if any(draws[row].params.logprobs_mode == "processed" for row in rows):
        source = torch.stack([_scored_row(logits[row], draws[row]) for row in rows])
    token_ids = [token_id for row in rows if (token_id := sampled[row].token_id) is not None]
    scored = score(source, token_ids, list(asked.values()), step.kernels)
    return dict(zip(rows, scored, strict=True))


def _scored_row(logits: Tensor, draw: Draw) -> Tensor:
    """``[vocab]`` on the device of ``logits``; what truncates runs on the host, as in sampling."""
    if draw.params.logprobs_mode != "processed":
        return logits
    return processed_logits(logits.cpu(), draw).to(logits.device)


def _error_of(sampled: Sampled, draw: Draw) -> TriptychError | None:
    if sampled.error is None:
        return None
    if isinstance(sampled.error, NothingAllowedError):
        return InvalidRequestError(
            f"no token is allowed at output position {draw.position}: allowed_token_ids, "
            f"bad words, min_tokens and bias together exclude the whole vocabulary",
            param="sampling_params",
        )
    return InternalError(_bad_logits(f"at output position {draw.position}"))


def _bad_logits(where: str) -> str:
    return f"the model gave NaN or infinite logits {where}"
