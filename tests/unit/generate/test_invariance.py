"""A request's ids and logprobs have the same bits alone, among others, and however it is cut."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.generate_runs import answer, answers, ask, bits, running_service
from support.tiny_models import FAMILIES, VOCAB_SIZE
from triptych.wire import GenerateRequest

DTYPES = ("float32", "bfloat16")
#: Families whose attention or experts differ in kind; the rest share their code.
KINDS = ("llama", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_moe", "gpt2")


def _requests(**params: Any) -> list[GenerateRequest]:
    draw = random.Random(11)
    asked = {"max_tokens": 9, "logprobs": 4, "prompt_logprobs": 2, **params}
    prompts = [[draw.randrange(VOCAB_SIZE) for _ in range(n)] for n in (70, 1, 7, 64, 129, 33)]
    return [ask(prompt, **asked) for prompt in prompts]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", KINDS)
async def test_answer_is_the_same_alone_among_others_and_chunked(
    family: str, dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    model_dir = tiny_dir(family)
    requests = _requests()
    async with running_service(model_dir, dtype=dtype) as service:
        assert service.info().invariant
        alone = [bits(await answer(service, request)) for request in requests]
        among = [bits(given) for given in await answers(service, requests)]
    assert among == alone
    for max_step_tokens in (7, 50):
        options = {"max_step_tokens": max_step_tokens, "max_num_sequences": 7}
        async with running_service(model_dir, dtype=dtype, **options) as service:
            assert [bits(given) for given in await answers(service, requests)] == alone


@pytest.mark.parametrize("dtype", DTYPES)
async def test_answer_is_the_same_after_preemption(
    dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    requests = _requests(max_tokens=40, temperature=0.9, seed=4)
    async with running_service(tiny_dir("llama"), dtype=dtype) as service:
        alone = [bits(await answer(service, request)) for request in requests]
    # 5 blocks of 64 tokens, each 2 layers x 2 heads x (16 + 16) elements: sequences that grow
    # beyond a block have to give theirs back.
    tight = {"kv_cache_bytes": 5 * 64 * 128 * (4 if dtype == "float32" else 2)}
    async with running_service(tiny_dir("llama"), dtype=dtype, **tight) as service:
        assert [bits(given) for given in await answers(service, requests)] == alone
        assert service.occupancy().num_preemptions > 0


@pytest.mark.parametrize("dtype", DTYPES)
async def test_output_scored_again_as_prompt_has_the_same_logprobs(
    dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    (request, *_) = _requests(temperature=1.0, seed=1)
    async with running_service(tiny_dir("llama"), dtype=dtype) as service:
        given = await answer(service, request)
        again = await answer(
            service,
            ask(request.token_ids + given.token_ids, max_tokens=0, prompt_logprobs=4),
        )
    assert again.prompt_logprobs is not None
    scored = list(again.prompt_logprobs.positions())[len(request.token_ids) :]
    assert scored == list(given.logprobs.positions())


async def test_answer_is_the_same_with_other_thread_counts(
    tiny_dir: Callable[[str], Path],
) -> None:
    requests, seen = _requests(max_tokens=4), []
    for num_threads in (2, 1):  # the last one stays for the tests that follow
        async with running_service(tiny_dir("llama"), num_threads=num_threads) as service:
            seen.append([bits(given) for given in await answers(service, requests)])
    assert seen[0] == seen[1]


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
async def test_smollm2_answer_is_the_same_alone_and_among_others(
    dtype: str, smollm2_dir: Path
) -> None:
    draw = random.Random(2)
    prompts = [[draw.randrange(49152) for _ in range(length)] for length in (70, 9, 20)]
    requests = [ask(prompt, max_tokens=4, logprobs=3) for prompt in prompts]
    options = {"dtype": dtype, "kv_cache_bytes": 1 << 27, "max_model_len": 512}
    async with running_service(smollm2_dir, max_step_tokens=64, **options) as service:
        assert service.info().invariant
        alone = [bits(await answer(service, request)) for request in requests]
        assert [bits(given) for given in await answers(service, requests)] == alone


def test_kinds_are_families() -> None:
    assert set(KINDS) <= set(FAMILIES)
