"""The service end to end on tiny models: limits, stops, seeds, scores."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest

from support.generate_runs import answer, answers, ask, front_doors, running_service
from support.tiny_models import VOCAB_SIZE, make_tiny_model, plain_model
from triptych_generate.ranking import Survey, survey

PROMPT = list(range(20, 30))


@pytest.fixture
def llama(tiny_dir: Callable[[str], Path]) -> Path:
    return tiny_dir("llama")


async def _greedy(model_dir: Path, num_tokens: int) -> list[int]:
    out = plain_model(model_dir).generate(
        torch.tensor([PROMPT]), max_new_tokens=num_tokens, do_sample=False
    )
    ids: list[int] = out[0, len(PROMPT) :].tolist()
    return ids


async def test_stop_token_is_kept_and_named(llama: Path) -> None:
    expected = await _greedy(llama, 8)
    stop = expected[4]
    end = expected.index(stop) + 1
    async with running_service(llama) as service:
        given = await answer(
            service, ask(PROMPT, max_tokens=8, stop_token_ids=[stop, 198], logprobs=0)
        )
    (choice,) = given.choices
    assert choice.token_ids == expected[:end]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert len(given.logprobs) == end


@pytest.mark.parametrize("as_list", [False, True])
async def test_eos_from_generation_config_ends_without_a_stop_reason(
    as_list: bool, tmp_path: Path, llama: Path
) -> None:
    expected = await _greedy(llama, 8)
    eos = expected[3]
    model_dir = make_tiny_model("llama", tmp_path, eos_token_id=[198, eos] if as_list else eos)
    async with running_service(model_dir) as service:
        given = await answer(service, ask(PROMPT, max_tokens=8))
        ignored = await answer(service, ask(PROMPT, max_tokens=8, ignore_eos=True))
    (choice,) = given.choices
    assert choice.token_ids == expected[: expected.index(eos) + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert ignored.token_ids == expected
    assert ignored.choices[0].finish_reason == "length"


@pytest.mark.parametrize("eos", [-1, VOCAB_SIZE])
async def test_eos_that_has_no_logit_masks_nothing_under_min_tokens(
    eos: int, tmp_path: Path
) -> None:
    model_dir = make_tiny_model("llama", tmp_path, eos_token_id=eos)
    last = VOCAB_SIZE - 1
    async with running_service(model_dir) as service:
        given = await answer(
            service, ask(PROMPT, max_tokens=2, min_tokens=1, logit_bias={last: 100.0})
        )
        assert service.eos_token_ids == frozenset()
    assert given.token_ids == [last, last]


async def test_min_tokens_masks_eos_and_stop_tokens(llama: Path) -> None:
    stop, plain, ids = (await _greedy(llama, 1))[0], plain_model(llama), list(PROMPT)
    with torch.inference_mode():
        for position in range(9):
            logits = plain(torch.tensor([ids])).logits[0, -1]
            if position < 6:
                logits[stop] = -torch.inf
            ids.append(int(logits.argmax()))
    expected = ids[len(PROMPT) :]
    if stop in expected:
        expected = expected[: expected.index(stop) + 1]
    async with running_service(llama) as service:
        given = await answer(
            service, ask(PROMPT, max_tokens=9, min_tokens=6, stop_token_ids=[stop])
        )
    assert given.token_ids == expected


async def test_omitted_max_tokens_is_the_context_that_is_left(llama: Path) -> None:
    async with running_service(llama, max_model_len=64) as service:
        given = await answer(service, ask(PROMPT))
    assert len(given.token_ids) == 64 - len(PROMPT)
    assert given.choices[0].finish_reason == "length"


async def test_max_tokens_0_scores_the_prompt_alone(llama: Path) -> None:
    async with running_service(llama) as service:
        given = await answer(service, ask(PROMPT, max_tokens=0, prompt_logprobs=2, n=2))
    assert [(c.index, c.token_ids, c.finish_reason) for c in given.choices] == [
        (0, [], "length"),
        (1, [], "length"),
    ]
    assert given.prompt_logprobs is not None
    assert len(given.prompt_logprobs) == len(PROMPT)


@pytest.mark.parametrize("max_step_tokens", [7, 256])
async def test_prompt_logprobs_equal_a_direct_log_softmax(
    max_step_tokens: int, llama: Path
) -> None:
    draw = random.Random(1)
    prompt = [draw.randrange(VOCAB_SIZE) for _ in range(80)]
    async with running_service(
        llama, max_step_tokens=max_step_tokens, max_num_sequences=4
    ) as service:
        given = await answer(service, ask(prompt, max_tokens=1, prompt_logprobs=3))
    assert given.prompt_logprobs is not None
    positions = list(given.prompt_logprobs.positions())
    assert len(positions) == len(prompt)
    assert positions[0] == []
    with torch.inference_mode():
        values = torch.log_softmax(plain_model(llama)(torch.tensor([prompt])).logits[0], -1)
    for index, candidates in enumerate(positions[1:]):
        row = values[index]
        assert candidates[0].token_id == prompt[index + 1]
        assert candidates[0].rank == 1 + int((row > row[prompt[index + 1]]).sum())
        best = [i for i in row.topk(3).indices.tolist() if i != prompt[index + 1]]
        assert [c.token_id for c in candidates[1:]] == best
        for candidate in candidates:
            assert candidate.logprob == pytest.approx(row[candidate.token_id].item(), abs=1e-4)


async def test_prompt_logprobs_come_once_with_the_first_delta(llama: Path) -> None:
    async with running_service(llama) as service:
        given = await answer(service, ask(PROMPT, n=3, max_tokens=5, prompt_logprobs=1))
        single = await answer(service, ask(PROMPT[:1], max_tokens=2, prompt_logprobs=1))
    assert [d.prompt_logprobs is not None for d in given.deltas] == [True] + [False] * (
        len(given.deltas) - 1
    )
    assert single.prompt_logprobs is not None
    assert single.prompt_logprobs.counts == [0]


@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_prompt_logprobs_come_first_where_only_choice_0_has_to_compute(
    max_tokens: int, llama: Path
) -> None:
    prompt = [*PROMPT] * 20
    async with running_service(llama, max_step_tokens=32, max_num_sequences=4) as service:
        await answer(service, ask(prompt, max_tokens=1))  # cached without scores
        given = await answer(service, ask(prompt, n=3, max_tokens=max_tokens, prompt_logprobs=0))
    assert [d.prompt_logprobs is not None for d in given.deltas] == [True] + [False] * (
        len(given.deltas) - 1
    )
    assert [len(choice.token_ids) for choice in given.choices] == [max_tokens] * 3


async def test_no_logprobs_are_sent_unasked(llama: Path) -> None:
    async with running_service(llama) as service:
        given = await answer(service, ask(PROMPT, max_tokens=3))
    assert given.prompt_logprobs is None
    assert given.choices[0].logprobs is None


async def test_processed_logprobs_are_of_the_sampled_distribution(llama: Path) -> None:
    asked = {"max_tokens": 1, "logprobs": 5, "temperature": 0.5, "top_k": 2, "seed": 3}
    async with running_service(llama) as service:
        raw = await answer(service, ask(PROMPT, **asked))
        processed = await answer(service, ask(PROMPT, logprobs_mode="processed", **asked))
    first, second = (
        {c.token_id: c.logprob for c in next(one.logprobs.positions())} for one in (raw, processed)
    )
    kept = [i for i, value in second.items() if value > -9999.0]
    assert len(kept) == 2
    scaled = torch.tensor([first[i] for i in kept]) / 0.5
    for token_id, value in zip(kept, torch.log_softmax(scaled, -1).tolist(), strict=True):
        assert second[token_id] == pytest.approx(value, abs=1e-4)


async def test_raw_logprobs_do_not_depend_on_sampling_parameters(llama: Path) -> None:
    async with running_service(llama, max_logprobs=-1) as service:
        seen = [
            await answer(service, ask(PROMPT, max_tokens=1, logprobs=-1, seed=1, **params))
            for params in ({}, {"temperature": 1.9}, {"temperature": 0.7, "top_p": 0.4})
        ]
    tables = [sorted(next(one.logprobs.positions())) for one in seen]
    assert len(tables[0]) == VOCAB_SIZE
    assert tables[0] == tables[1] == tables[2]


async def test_empty_list_of_labels_scores_the_sampled_token_alone(llama: Path) -> None:
    async with running_service(llama) as service:
        given = await answer(service, ask(PROMPT, max_tokens=2, logprobs=3, logprob_token_ids=[]))
    assert given.logprobs.counts == [1, 1]


async def test_seeded_answer_is_reproducible_and_independent_of_the_batch(llama: Path) -> None:
    request = ask(PROMPT, n=3, max_tokens=12, temperature=1.0, top_p=0.95, seed=99)
    others = [ask([5, i], max_tokens=20, temperature=1.3) for i in range(5)]
    async with running_service(llama) as service:
        alone = await answer(service, request)
        among, *_ = await answers(service, [request, *others])
    ids = [choice.token_ids for choice in alone.choices]
    assert [choice.token_ids for choice in among.choices] == ids
    assert len({tuple(one) for one in ids}) == 3


async def test_choices_and_requests_without_a_seed_differ(llama: Path) -> None:
    request = ask(PROMPT, n=2, max_tokens=12, temperature=1.5)
    async with running_service(llama) as service:
        given = await answers(service, [request, request])
    assert len({tuple(c.token_ids) for one in given for c in one.choices}) == 4


async def test_bad_words_never_appear(llama: Path) -> None:
    expected = await _greedy(llama, 10)
    words = [expected[2:4], expected[6:7]]
    async with running_service(llama) as service:
        given = await answer(service, ask(PROMPT, max_tokens=10, bad_words_token_ids=words))
    pairs = list(zip(given.token_ids, given.token_ids[1:], strict=False))
    assert tuple(words[0]) not in pairs
    assert words[1][0] not in given.token_ids


async def test_allowed_ids_are_the_only_ones_and_all_scored(llama: Path) -> None:
    allowed = list(range(40, 70))
    async with running_service(llama) as service:
        given = await answer(
            service,
            ask(PROMPT, max_tokens=6, temperature=2.0, allowed_token_ids=allowed, logprobs=30),
        )
    assert set(given.token_ids) <= set(allowed)
    for candidates in given.logprobs.positions():
        assert sorted(c.token_id for c in candidates) == allowed


@pytest.mark.parametrize(
    ("params", "num_scored"),
    [
        ({}, 0),
        ({"temperature": 0.8, "seed": 1, "top_p": 0.9}, 0),
        ({"logprobs": 0}, 5),
        ({"logprobs": 3}, 5),
        ({"prompt_logprobs": 0}, len(PROMPT) - 1),
    ],
)
async def test_nothing_is_scored_that_nobody_asked_for(
    params: dict[str, Any], num_scored: int, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []

    def counted(logits: torch.Tensor, *arguments: Any) -> Survey:
        rows.append(len(logits))
        return survey(logits, *arguments)

    monkeypatch.setattr("triptych_generate.logprobs.survey", counted)
    async with running_service(llama) as service:
        await answer(service, ask(PROMPT, max_tokens=5, **params))
        page = generate_latest(service.metrics.collectors[2]).decode()
    assert sum(rows) == num_scored
    assert f"scored_positions_total {num_scored:.1f}" in page


async def test_request_id_of_a_body_is_logged_where_it_is_one_plain_word(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another would write fields of its own into the line, and megabytes."""
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}}
    async with running_service(llama) as service, front_doors(service) as doors:
        with caplog.at_level(logging.INFO):
            for given in ("run-7/a", "x key=forged", "long" * 99):
                asked = {**body, "request_id": given}
                reply = await doors.http.post("/inference/v1/generate", json=asked)
                assert reply.json()["request_id"] == given
    assert "request=run-7/a" in caplog.text
    assert "forged" not in caplog.text
    assert "longlong" not in caplog.text
