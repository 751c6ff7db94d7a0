"""What comes from the prefix cache has the bits of what is computed: ids, logprobs, prompt scores.

Each answer is compared with that of a service without a prefix cache.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.generate_runs import answer, answers, ask, bits, running_service
from support.tiny_models import VOCAB_SIZE
from triptych.wire import GenerateRequest
from triptych_generate.service import GenerateService

DTYPES = ("float32", "bfloat16")
#: A sliding window, sinks, experts, and none of these.
KINDS = ("llama", "qwen3", "gemma3_text", "gpt_oss", "mixtral")


def _prompt(length: int, *, seed: int = 3, vocab_size: int = VOCAB_SIZE) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(length)]


def _cached_tokens(service: GenerateService) -> int:
    return service.occupancy().num_hit


async def _bits_without_cache(
    model_dir: Path, requests: list[GenerateRequest], **options: Any
) -> list[Any]:
    async with running_service(model_dir, prefix_cache=False, **options) as service:
        given = [bits(await answer(service, request)) for request in requests]
        assert _cached_tokens(service) == 0
    return given


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", KINDS)
async def test_answer_is_the_same_after_a_hit(
    family: str, dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    prompt, other = _prompt(200), _prompt(70, seed=4)
    asked: dict[str, Any] = {"max_tokens": 6, "logprobs": 3}
    requests = [
        ask(prompt, **asked),
        ask(prompt, temperature=1.0, seed=1, n=3, **asked),  # all but the last token
        ask(prompt[:130] + other, **asked),  # two blocks
        ask(prompt[:128], **asked),  # whole blocks only: the last one is copied
        ask([*prompt, *other, *prompt], **asked),
    ]
    expected = await _bits_without_cache(tiny_dir(family), requests, dtype=dtype)
    hits = []
    async with running_service(tiny_dir(family), dtype=dtype) as service:
        for request, bits_of_it in zip(requests, expected, strict=True):
            before = _cached_tokens(service)
            assert bits(await answer(service, request)) == bits_of_it
            hits.append(_cached_tokens(service) - before)
        service._parts.scheduler.check()
    assert hits == [0, 3 * 199, 128, 127, 192]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", KINDS)
async def test_prompt_logprobs_from_the_cache_are_the_computed_ones(
    family: str, dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    prompt, other = _prompt(200), _prompt(70, seed=4)
    requests = [
        ask(prompt, max_tokens=2, prompt_logprobs=3),
        ask(prompt, max_tokens=2, prompt_logprobs=3),  # 3 blocks but their last token
        ask(prompt[:192] + other, max_tokens=0, prompt_logprobs=0),  # fewer candidates suffice
        ask(prompt[:128], max_tokens=1, prompt_logprobs=1),  # all scores are kept
        ask(prompt, max_tokens=1, prompt_logprobs=4),  # more are not: computed again
        ask(prompt, max_tokens=1, prompt_logprobs=4),
        ask(other, max_tokens=1),
        ask(other, max_tokens=1, prompt_logprobs=0),  # cached without scores
    ]
    expected = await _bits_without_cache(tiny_dir(family), requests, dtype=dtype)
    hits = []
    async with running_service(tiny_dir(family), dtype=dtype) as service:
        for request, bits_of_it in zip(requests, expected, strict=True):
            before = _cached_tokens(service)
            assert bits(await answer(service, request)) == bits_of_it
            hits.append(_cached_tokens(service) - before)
    assert hits == [0, 191, 191, 127, 0, 191, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", KINDS)
async def test_answer_is_the_same_after_preemption_with_and_without_cache(
    family: str, dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    params: dict[str, Any] = {"max_tokens": 70, "logprobs": 2, "prompt_logprobs": 1}
    prompts = [_prompt(length, seed=length) for length in (70, 1, 40, 64, 129)]
    requests = [ask(prompt, temperature=0.9, seed=4, **params) for prompt in prompts]
    expected = await _bits_without_cache(tiny_dir(family), requests, dtype=dtype)
    for prefix_cache in (False, True):
        options: dict[str, Any] = {"dtype": dtype, "prefix_cache": prefix_cache}
        async with running_service(tiny_dir(family), **options) as service:
            scheduler = service._parts.scheduler
            held = scheduler.pool.take(scheduler.pool.num_free - 5)
            assert [bits(given) for given in await answers(service, requests)] == expected
            assert scheduler.num_preemptions > 0
            scheduler.pool.give_back(held)
            scheduler.check()


async def test_answers_under_eviction_are_the_same(tiny_dir: Callable[[str], Path]) -> None:
    draw = random.Random(5)
    starts = [_prompt(150, seed=seed) for seed in range(4)]
    requests = [
        ask(
            draw.choice(starts)[: draw.randrange(1, 150)] + _prompt(draw.randrange(9), seed=index),
            max_tokens=draw.randrange(1, 30),
            logprobs=1,
            prompt_logprobs=draw.choice([None, 0, 2]),
        )
        for index in range(40)
    ]
    expected = await _bits_without_cache(tiny_dir("llama"), requests)
    async with running_service(tiny_dir("llama")) as service:
        scheduler = service._parts.scheduler
        scheduler.pool.take(scheduler.pool.num_free - 7)
        assert [bits(given) for given in await answers(service, requests)] == expected
        assert scheduler.pool.num_evictions > 0
        assert _cached_tokens(service) > 0


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
async def test_smollm2_answer_is_the_same_after_a_hit(dtype: str, smollm2_dir: Path) -> None:
    prompt = _prompt(150, vocab_size=49152)
    requests = [
        ask(prompt, max_tokens=3, logprobs=2, prompt_logprobs=2),
        ask(prompt, max_tokens=3, logprobs=2, prompt_logprobs=1),
        ask(prompt[:100] + prompt[:50], max_tokens=3, logprobs=2),
    ]
    options: dict[str, Any] = {"dtype": dtype, "kv_cache_bytes": 1 << 27, "max_model_len": 512}
    expected = await _bits_without_cache(smollm2_dir, requests, **options)
    async with running_service(smollm2_dir, **options) as service:
        assert [bits(await answer(service, request)) for request in requests] == expected
        assert _cached_tokens(service) == 127 + 64
