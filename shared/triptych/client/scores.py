"""Scores: the exact logprob of every token of a text, and of labels that might follow one."""

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from triptych.client import calls
from triptych.client.calls import Call, Plan, reader
from triptych.client.fields import OnePrompt
from triptych.client.replies import Completion, CompletionChoice, PromptLogprob
from triptych.errors import InternalError, InvalidRequestError
from triptych.logprobs import Candidate, Logprobs

#: A larger mean would not fit a float as perplexity.
_MAX_EXPONENT = 709.0


class ScoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a text.

    ``logprob`` and ``rank`` are None where there is no score: the first token of a prompt.
    ``token``, ``text_offset`` (code points): None where nobody knows text. ``candidates``: the
    token itself, then the best others that were asked for.
    """

    token_id: int
    logprob: float | None
    rank: int | None
    token: str | None = None
    text_offset: int | None = None
    candidates: list[Candidate] = []


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A text, token by token. Sums are over the tokens that have a score."""

    tokens: list[ScoredToken]

    @property
    def logprobs(self) -> list[float]:
        """Natural logarithms, of the tokens that have a score."""
        return [token.logprob for token in self.tokens if token.logprob is not None]

    @property
    def logprob(self) -> float:
        """The sum; 0 if no token has a score."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float | None:
        """E to minus the mean logprob; None if no token has a score."""
        return perplexity(self.logprob, len(self.logprobs))


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a label is right behind a prompt: the sum over its tokens.

    ``share``: its probability among all labels that were asked for; these add up to 1.
    """

    label: OnePrompt
    token_ids: list[int]
    logprob: float
    share: float


def perplexity(logprob: float, num_tokens: int) -> float | None:
    """E to minus the mean logprob, infinite where it is too large for a float."""
    if num_tokens == 0:
        return None
    exponent = -logprob / num_tokens
    return math.exp(exponent) if exponent < _MAX_EXPONENT else math.inf


def float32_values(values: Iterable[float]) -> list[float]:
    """The float32 values that are nearest: those that the model gave, of JSON's short texts."""
    return array("f", values).tolist()


def score(prompts: Sequence[OnePrompt], top: int) -> Call[list[Score]]:
    """Every token of each prompt, with ``top`` candidates; nothing is generated."""
    read = reader(Completion)

    def read_scores(data: bytes) -> list[Score]:
        return [_score_of_choice(choice) for choice in read(data).choices]

    asked = calls.complete(
        prompts,
        {
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
            "prompt_logprobs": top,
            "return_token_ids": True,
            "skip_special_tokens": False,
        },
    )
    return Call(asked.path, read_scores, asked.body)


def score_labels(prompt: OnePrompt, labels: Sequence[OnePrompt]) -> Plan[list[LabelScore]]:
    """The logprob of each label behind ``prompt``.

    Texts of labels are encoded on their own: one that begins a word begins with its space. Labels
    of one token each need no more than one position of the model; others are scored as prompts.

    Raises:
        InvalidRequestError: the prompt has no tokens, and a label's first then no logprob.
    """
    prompt_ids = yield from _ids_of(prompt, add_special_tokens=True)
    if not prompt_ids:
        raise InvalidRequestError("prompt has no tokens; at least 1 is needed", param="prompt")
    ids = yield from _ids_of_each(labels)
    if all(len(each) == 1 for each in ids):
        found = yield _next_token(prompt_ids, [each[0] for each in ids])
        values = [found[each[0]] for each in ids]
    else:
        scores = yield score([prompt_ids + each for each in ids], 0)
        values = [
            math.fsum(one.logprobs[-len(each) :]) if each else 0.0
            for one, each in zip(scores, ids, strict=True)
        ]
    return [
        LabelScore(label=label, token_ids=token_ids, logprob=value, share=part)
        for label, token_ids, value, part in zip(labels, ids, values, _shares(values), strict=True)
    ]


def score_of_columns(token_ids: Sequence[int], columns: Logprobs) -> Score:
    """The score of a prompt from generate's own columns, without text."""
    tokens = [
        ScoredToken(
            token_id=token_id,
            logprob=listed[0].logprob if listed else None,
            rank=listed[0].rank if listed else None,
            candidates=listed,
        )
        for token_id, listed in zip(token_ids, columns.positions(), strict=True)
    ]
    return Score(tokens=tokens)


def _ids_of_each(texts: Sequence[OnePrompt]) -> Plan[list[list[int]]]:
    ids = []
    for text in texts:
        found = yield from _ids_of(text, add_special_tokens=False)
        ids.append(found)
    return ids


def _ids_of(text: OnePrompt, *, add_special_tokens: bool) -> Plan[list[int]]:
    if not isinstance(text, str):
        return list(text)
    encoded = yield calls.tokenize(text, add_special_tokens=add_special_tokens)
    ids: list[int] = encoded.tokens
    return ids


def _next_token(prompt_ids: list[int], token_ids: list[int]) -> Call[dict[int, float]]:
    """The logprobs of ``token_ids`` at the next position, whatever is sampled there."""
    read = reader(Completion)

    def read_values(data: bytes) -> dict[int, float]:
        logprobs = read(data).choices[0].logprobs
        listed = logprobs.top_logprobs[0] if logprobs else None
        if listed is None:
            raise InternalError("the server's answer has no logprobs")
        ids = [int(name.removeprefix("token_id:")) for name in listed]
        return dict(zip(ids, float32_values(listed.values()), strict=True))

    asked = calls.complete(
        prompt_ids,
        {
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 0,
            "logprob_token_ids": token_ids,
            "return_tokens_as_token_ids": True,
        },
    )
    return Call(asked.path, read_values, asked.body)


def _score_of_choice(choice: CompletionChoice) -> Score:
    ids, positions, shown = choice.prompt_token_ids, choice.prompt_logprobs, choice.logprobs
    if ids is None or positions is None or shown is None:
        raise InternalError("the server's answer has no prompt_logprobs")
    rows = zip(ids, positions, shown.tokens, shown.text_offset, strict=True)
    return Score(tokens=[_token(*row) for row in rows])


def _token(
    token_id: int, listed: dict[int, PromptLogprob] | None, text: str, offset: int
) -> ScoredToken:
    given = listed or {}
    values = float32_values(each.logprob for each in given.values())
    candidates = [
        Candidate(key, value, each.rank)
        for (key, each), value in zip(given.items(), values, strict=True)
    ]
    own = next((each for each in candidates if each.token_id == token_id), None)
    return ScoredToken(
        token_id=token_id,
        logprob=None if own is None else own.logprob,
        rank=None if own is None else own.rank,
        token=text,
        text_offset=offset,
        candidates=candidates,
    )


def _shares(logprobs: list[float]) -> list[float]:
    """Softmax over the labels."""
    best = max(logprobs, default=0.0)
    weights = [math.exp(value - best) for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
