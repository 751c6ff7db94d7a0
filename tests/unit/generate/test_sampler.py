"""The sampler against a plain reference that sorts everything, and its statistics."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.wire import SamplingParams
from triptych_generate.masks import Draw, adjust_logits, bad_word_ends
from triptych_generate.ranking import best_ids, ranks_of
from triptych_generate.sampler import (
    BadLogitsError,
    NothingAllowedError,
    kept_ids,
    processed_logits,
    sample,
    scale_logits,
)


def _draw(
    prompt_ids: tuple[int, ...] = (),
    output_ids: tuple[int, ...] = (),
    *,
    seed: int = 0,
    choice_index: int = 0,
    forbidden_ids: tuple[int, ...] = (),
    **params: Any,
) -> Draw:
    return Draw(
        params=SamplingParams(**params),
        prompt_ids=list(prompt_ids),
        output_ids=list(output_ids),
        seed=seed,
        choice_index=choice_index,
        forbidden_ids=list(forbidden_ids),
    )


def _logits(size: int, seed: int = 0, *, steps: int | None = None) -> torch.Tensor:
    """Random logits; with ``steps`` they are rounded, so that ties are common."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    return values if steps is None else (values * steps).round() / steps


def _reference_kept(logits: list[float], *, top_k: int, top_p: float, min_p: float) -> list[int]:
    """top-k, top-p and min-p as their definitions read, over one full sort."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        order = order[:top_k]
    weights = [math.exp(logits[i] - logits[order[0]]) for i in order]
    kept, mass = [], 0.0
    for index, weight in zip(order, weights, strict=True):
        if mass >= top_p * sum(weights) or weight < min_p:
            break
        kept.append(index)
        mass += weight
    return kept


@settings(max_examples=200)
@given(
    size=st.sampled_from([1, 5, 64, 100, 300, 2500]),
    seed=st.integers(0, 1000),
    top_k=st.sampled_from([0, -1, 1, 3, 50, 64, 65, 200, 10_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    steps=st.sampled_from([None, 2]),
)
def test_kept_ids_equal_the_reference(
    size: int, seed: int, top_k: int, top_p: float, min_p: float, steps: int | None
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    scaled = scale_logits(_logits(size, seed, steps=steps), 1.0)
    kept = kept_ids(scaled, params).tolist()
    assert kept == _reference_kept(scaled.tolist(), top_k=top_k, top_p=top_p, min_p=min_p)


@settings(max_examples=100)
@given(
    size=st.integers(1, 700),
    count=st.integers(1, 80),
    seed=st.integers(0, 100),
    steps=st.sampled_from([None, 1, 4]),
)
def test_best_ids_equal_a_full_sort(size: int, count: int, seed: int, steps: int | None) -> None:
    values = torch.stack([_logits(size, seed, steps=steps), _logits(size, seed + 1, steps=steps)])
    wanted = values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(best_ids(values, min(count, size)), wanted)


@given(seed=st.integers(0, 100), ids=st.lists(st.integers(0, 299), min_size=1, max_size=40))
def test_ranks_count_strictly_greater_entries(seed: int, ids: list[int]) -> None:
    row = _logits(300, seed, steps=2)
    wanted = [1 + int((row > row[i]).sum()) for i in ids]
    assert ranks_of(row, row[ids]).tolist() == wanted


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7, "top_p": 0.8},
        {"top_k": 7},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"logit_bias": {3: 4.0, 5: -100.0}},
        {"allowed_token_ids": [2, 9, 30]},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    ],
    ids=str,
)
def test_draws_follow_the_processed_distribution(params: dict[str, Any]) -> None:
    num_draws, logits = 4000, _logits(90)
    base = _draw((1, 2, 3), (3, 4, 4), **params)
    wanted = processed_logits(logits, base).softmax(-1)
    draws = [_draw((1, 2, 3), (3, 4, 4), seed=seed, **params) for seed in range(num_draws)]
    ids = [one.token_id for one in sample(logits.expand(num_draws, -1), draws)]
    counts = torch.bincount(torch.tensor(ids), minlength=90)
    assert counts[wanted == 0].sum() == 0
    # Bins with fewer than 5 expected are joined, as the chi-square test needs.
    large = wanted * num_draws >= 5
    seen = torch.cat([counts[large], counts[~large].sum()[None]]).double()
    expected = torch.cat([wanted[large], wanted[~large].sum()[None]]).double() * num_draws
    used = expected > 0.5
    chi_square = ((seen - expected) ** 2 / expected.clamp(min=1e-9))[used].sum().item()
    freedom = max(int(used.sum()) - 1, 1)
    assert chi_square < freedom + 4.5 * math.sqrt(2 * freedom) + 10


def test_penalties_equal_their_formulas() -> None:
    logits = torch.tensor([2.0, -1.0, 3.0, 0.5, -2.0])
    draw = _draw(
        (0, 1), (2, 2, 4), repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5
    )
    # Repetition: positive over 2, negative times 2, for prompt and output; then the output's
    # ids lose 0.25 once and 0.5 per occurrence.
    wanted = [1.0, -2.0, 1.5 - 0.25 - 1.0, 0.5, -4.0 - 0.25 - 0.5]
    assert adjust_logits(logits, draw).tolist() == pytest.approx(wanted)
    assert logits[0] == 2.0  # the caller's row is left as it is


def test_bias_comes_before_masks() -> None:
    draw = _draw(logit_bias={1: 100.0, 2: 1.0}, allowed_token_ids=[2, 0], forbidden_ids=(0,))
    adjusted = adjust_logits(torch.zeros(4), draw)
    assert adjusted.tolist() == [-math.inf, -math.inf, 1.0, -math.inf]


def test_bad_word_is_masked_only_after_its_beginning() -> None:
    params = SamplingParams(bad_words_token_ids=[[7], [1, 2, 3], [2, 9], [5, 5]])
    assert bad_word_ends(params, []) == [7]
    assert bad_word_ends(params, [1, 2]) == [7, 3, 9]
    assert bad_word_ends(params, [2]) == [7, 9]
    assert bad_word_ends(params, [0, 5]) == [7, 5]


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    draws = [_draw(temperature=0.0), _draw(temperature=0.0, logit_bias={3: 0.0})]
    assert [one.token_id for one in sample(logits, draws)] == [1, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-7, 0.001])
def test_tiny_temperature_is_the_greedy_choice(temperature: float) -> None:
    logits = _logits(500)
    (one,) = sample(logits[None], [_draw(temperature=temperature)])
    assert one.token_id == int(logits.argmax())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_row_is_an_error_and_leaves_the_others(bad: float) -> None:
    logits = torch.stack([_logits(50), _logits(50, 1), _logits(50, 2)])
    logits[1, 7] = bad
    first, second, third = sample(logits, [_draw(temperature=0.0)] * 3)
    assert isinstance(second.error, BadLogitsError)
    assert second.token_id is None
    assert (first.token_id, third.token_id) == (int(logits[0].argmax()), int(logits[2].argmax()))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_any_allowed_token_is_an_error(temperature: float) -> None:
    draw = _draw(temperature=temperature, allowed_token_ids=[4], forbidden_ids=(4,))
    (one,) = sample(_logits(50)[None], [draw])
    assert isinstance(one.error, NothingAllowedError)


def test_masked_tokens_are_never_drawn_without_truncation() -> None:
    logits = torch.full((1, 20), -math.inf)
    logits[0, [3, 8]] = 0.0
    drawn = {sample(logits, [_draw(seed=seed)])[0].token_id for seed in range(60)}
    assert drawn == {3, 8}


def test_choices_of_one_seed_draw_differently() -> None:
    logits = torch.zeros(1, 1000)
    drawn = [
        sample(logits, [_draw(seed=1, choice_index=choice)])[0].token_id for choice in range(8)
    ]
    assert len(set(drawn)) > 5
