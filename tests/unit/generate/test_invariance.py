"""A request's ids and logprobs have the same bits alone, among others, and however it is cut."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.generate_runs import answer, ask, bits, running_service, until
from support.tiny_models import FAMILIES, VOCAB_SIZE
from triptych.wire import GenerateRequest
from triptych_generate.scheduler import Plan
from triptych_generate.service import GenerateService

DTYPES = ("float32", "bfloat16")
#: Families whose attention or experts differ in kind; the rest share their code.
KINDS = (
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
    "gpt2",
)
TESTS = Path(__file__).parent.parent.parent


def _requests(lengths: list[int], *, vocab_size: int, max_tokens: int) -> list[GenerateRequest]:
    """Greedy and sampled by turns; some score their prompts, some have two choices."""
    draw = random.Random(11)
    requests = []
    for index, length in enumerate(lengths):
        params: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": 4}
        if index % 2:
            params |= {"temperature": 0.9, "seed": index, "n": 1 + index % 4 // 3, "top_p": 0.95}
        if index % 3 == 0:
            params["prompt_logprobs"] = 2
        requests.append(ask([draw.randrange(vocab_size) for _ in range(length)], **params))
    return requests


class StepCount:
    """Counts an engine's steps: what "at a random time" refers to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, plan: Plan) -> None:
        self.count += 1


async def _arriving(
    service: GenerateService, requests: list[GenerateRequest], steps: StepCount
) -> list[Any]:
    """The bits of all answers: the first request at once, the others while it runs."""
    draw, start = random.Random(7), steps.count
    last_arrival = requests[0].sampling_params.max_tokens or 0

    async def arrive(request: GenerateRequest, step: int) -> Any:
        await until(lambda: steps.count >= start + step)
        return bits(await answer(service, request))

    arrivals = [0] + [draw.randrange(last_arrival) for _ in requests[1:]]
    return await asyncio.gather(*map(arrive, requests, arrivals))


async def _check_every_condition(
    model_dir: Path, requests: list[GenerateRequest], *, num_alone: int, **options: Any
) -> None:
    """Compare with the answers of the first ``num_alone`` requests, each the only one to run."""
    steps = StepCount()
    options = {"kv_cache_bytes": 1 << 22, **options}
    async with running_service(model_dir, fault=steps, **options) as service:
        assert service.info().invariant
        alone = [bits(await answer(service, each)) for each in requests[:num_alone]]
        again = [bits(await answer(service, each)) for each in requests[:num_alone]]
        assert again == alone, "asked again, when its prompt may be cached"
        among = await _arriving(service, requests, steps)
        assert among[:num_alone] == alone, "among others"
        for request in requests[:num_alone]:
            await _assert_scored_alike(service, request)
        block_bytes = options["kv_cache_bytes"] // service.occupancy().num_blocks
    longest = max(len(each.token_ids) + (each.sampling_params.max_tokens or 0) for each in requests)
    tight = {
        **options,
        "kv_cache_bytes": block_bytes * (3 + longest // 64),
        "max_step_tokens": len(requests) + 1,
        "max_num_sequences": len(requests),
        "num_threads": 2,
    }
    async with running_service(model_dir, fault=steps, **tight) as service:
        squeezed = await _arriving(service, requests, steps)
        assert squeezed == among, "restarted, with small chunks, two threads, and preempted"
        assert service.occupancy().num_preemptions > 0


async def _assert_scored_alike(service: GenerateService, request: GenerateRequest) -> None:
    """The output's logprobs are those of the same tokens as a prompt."""
    given = await answer(service, request)
    for choice in given.choices:
        again = await answer(
            service, ask(request.token_ids + choice.token_ids, max_tokens=0, prompt_logprobs=4)
        )
        assert again.prompt_logprobs is not None
        assert choice.logprobs is not None
        scored = list(again.prompt_logprobs.positions())[len(request.token_ids) :]
        assert scored == list(choice.logprobs.positions()), "scored again as a prompt"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", KINDS)
async def test_answer_is_the_same_whatever_else_runs_and_however_it_is_cut(
    family: str, dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    lengths = [70, 1, 7, 64, 129, 33, 2, 90, 15, 65, 3, 128, 40, 5, 63, 100]
    requests = _requests(lengths, vocab_size=VOCAB_SIZE, max_tokens=12)
    await _check_every_condition(tiny_dir(family), requests, num_alone=6, dtype=dtype)


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
async def test_smollm2_answer_is_the_same_whatever_else_runs_and_however_it_is_cut(
    dtype: str, smollm2_dir: Path
) -> None:
    # Most grow beyond a block, so that too few blocks make them give theirs back.
    lengths = [70, 9, 60, 62, 61, 64, 63, 59, 33, 61, 62, 60, 63, 40, 60, 62]
    requests = _requests(lengths, vocab_size=49152, max_tokens=6)
    options = {"dtype": dtype, "kv_cache_bytes": 1 << 28, "max_model_len": 256}
    await _check_every_condition(smollm2_dir, requests, num_alone=3, **options)


_OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from support.generate_runs import answer, ask, running_service

async def main():
    async with running_service(Path(sys.argv[1]), dtype=sys.argv[2]) as service:
        request = ask(range(20, 100), n=2, max_tokens=9, temperature=1.0, seed=3, logprobs=5)
        print((await answer(service, request)).choices)

asyncio.run(main())
"""


@pytest.mark.parametrize("dtype", DTYPES)
async def test_answer_is_the_same_in_another_process(
    dtype: str, tiny_dir: Callable[[str], Path]
) -> None:
    request = ask(range(20, 100), n=2, max_tokens=9, temperature=1.0, seed=3, logprobs=5)
    async with running_service(tiny_dir("llama"), dtype=dtype) as service:
        here = await answer(service, request)
    command = [sys.executable, "-c", _OTHER_PROCESS, str(tiny_dir("llama")), dtype]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=TESTS, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.strip() == str(here.choices)


def test_kinds_are_families() -> None:
    assert set(KINDS) <= set(FAMILIES)
