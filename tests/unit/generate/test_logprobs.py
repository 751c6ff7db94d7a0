"""Logprob columns against a direct log-softmax, and the rules of order and count."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.logprobs import Candidate
from triptych.wire import SamplingParams
from triptych_generate.logprobs import Wanted, score, wanted_for_output, wanted_for_prompt
from triptych_generate.native import load_kernels

_VOCAB = 230


def _rows(num_rows: int, seed: int = 0, *, steps: int | None = None) -> torch.Tensor:
    values = torch.randn(num_rows, _VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return values if steps is None else (values * steps).round() / steps


def _entry(values: torch.Tensor, token_id: int) -> Candidate:
    rank = 1 + int((values > values[token_id]).sum())
    return Candidate(token_id, max(values[token_id].item(), -9999.0), rank)


def _positions(logits: torch.Tensor, ids: list[int], wanted: list[Wanted]) -> list[list[Candidate]]:
    """By torch operators, after a look that the compiled kernels give the same."""
    found, compiled = (
        [next(one.positions()) for one in score(logits, ids, wanted, kernels)]
        for kernels in (None, load_kernels())
    )
    for row, other in zip(found, compiled, strict=True):
        assert [(one.token_id, one.rank) for one in row] == [(o.token_id, o.rank) for o in other]
        assert [o.logprob for o in other] == pytest.approx([one.logprob for one in row], abs=1e-5)
    return found


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1000),
    asked=st.lists(
        st.tuples(st.integers(0, _VOCAB - 1), st.integers(0, 25)), min_size=1, max_size=5
    ),
    steps=st.sampled_from([None, 2]),
)
def test_scores_equal_a_plain_sort_of_log_softmax(
    seed: int, asked: list[tuple[int, int]], steps: int | None
) -> None:
    logits = _rows(len(asked), seed, steps=steps)
    found = _positions(logits, [token for token, _ in asked], [Wanted(k) for _, k in asked])
    for row, (token_id, num_best) in enumerate(asked):
        values = torch.log_softmax(logits[row], -1)
        order = sorted(range(_VOCAB), key=lambda i: (-values[i].item(), i))
        others = [i for i in order[:num_best] if i != token_id]
        assert found[row] == [_entry(values, i) for i in (token_id, *others)]


def test_sampled_token_outside_the_best_makes_one_more_entry() -> None:
    logits = _rows(1)
    best, worst = int(logits.argmax()), int(logits.argmin())
    inside, outside = (_positions(logits, [token_id], [Wanted(5)])[0] for token_id in (best, worst))
    assert (len(inside), len(outside)) == (5, 6)
    assert outside[0] == _entry(torch.log_softmax(logits[0], -1), worst)
    assert outside[0].rank == _VOCAB


def test_labels_come_in_the_order_of_the_request_each_once() -> None:
    logits = _rows(1, steps=2)
    values = torch.log_softmax(logits[0], -1)
    labels = (200, 3, 41, 3, 7)
    (found,) = _positions(logits, [41], [Wanted(4, label_ids=labels)])
    assert found == [_entry(values, i) for i in (41, 200, 3, 7)]


def test_best_among_allowed_have_full_vocabulary_values() -> None:
    logits = _rows(1)
    values = torch.log_softmax(logits[0], -1)
    allowed = (5, 90, 17, 200)
    (found,) = _positions(logits, [17], [Wanted(20, among_ids=allowed)])
    rest = sorted({5, 90, 200}, key=lambda i: -values[i].item())
    assert found == [_entry(values, i) for i in (17, *rest)]
    (two,) = _positions(logits, [17], [Wanted(2, among_ids=allowed)])
    best_two = sorted(allowed, key=lambda i: -values[i].item())[:2]
    assert [c.token_id for c in two] == [17, *(i for i in best_two if i != 17)]


def test_rows_of_all_kinds_are_scored_together_as_alone() -> None:
    logits = _rows(5)
    ids = [1, 2, 3, 4, 5]
    wanted = [
        Wanted(0),
        Wanted(7),
        Wanted(3, label_ids=(9, 8)),
        Wanted(2, among_ids=(4, 10, 11)),
        Wanted(_VOCAB),
    ]
    together = score(logits, ids, wanted, load_kernels())
    alone = [score(logits[i : i + 1], [ids[i]], [wanted[i]], load_kernels())[0] for i in range(5)]
    assert together == alone


def test_minus_infinity_leaves_as_minus_9999() -> None:
    logits = _rows(1)
    logits[0, 5] = -math.inf
    (found,) = _positions(logits, [5], [Wanted(_VOCAB)])
    assert found[0] == Candidate(5, -9999.0, _VOCAB)
    assert all(math.isfinite(candidate.logprob) for candidate in found)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, None),
        ({"logprobs": 0}, Wanted(0)),
        ({"logprobs": 3}, Wanted(3)),
        ({"logprobs": -1}, Wanted(_VOCAB)),
        ({"logprobs": 500}, Wanted(_VOCAB)),
        ({"logprob_token_ids": [4, 2]}, Wanted(0, label_ids=(4, 2))),
        ({"logprobs": 2, "allowed_token_ids": [9, 4, 9]}, Wanted(2, among_ids=(4, 9))),
        ({"prompt_logprobs": 3}, None),
    ],
)
def test_wanted_for_output_follows_the_request(
    params: dict[str, Any], wanted: Wanted | None
) -> None:
    assert wanted_for_output(SamplingParams(**params), _VOCAB) == wanted


def test_wanted_for_prompt_ignores_what_is_asked_of_the_output() -> None:
    params = SamplingParams(logprobs=5, prompt_logprobs=1, allowed_token_ids=[3])
    assert wanted_for_prompt(params, _VOCAB) == Wanted(1)
    assert wanted_for_prompt(SamplingParams(logprobs=5), _VOCAB) is None
