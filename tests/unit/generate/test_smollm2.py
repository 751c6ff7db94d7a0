"""The built-in model against transformers and against a recorded vLLM server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from support.generate_runs import answer, answers, ask, running_service
from support.tiny_models import plain_model
from triptych.logprobs import Logprobs
from triptych_generate.service import GenerateService

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

_CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "recorded_generate.json").read_bytes()
)["cases"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(smollm2_dir: Path) -> AsyncIterator[GenerateService]:
    options = {"max_model_len": 512, "kv_cache_bytes": 1 << 27, "max_step_tokens": 64}
    async with running_service(smollm2_dir, **options) as started:
        yield started


async def test_smollm2_greedy_ids_and_logprobs_equal_transformers(
    service: GenerateService, smollm2_dir: Path
) -> None:
    prompts = [[504, 3575, 282, 4649, 314], list(range(1000, 1090))]
    given = await answers(
        service, [ask(p, max_tokens=10, logprobs=5, ignore_eos=True) for p in prompts]
    )
    plain = plain_model(smollm2_dir)
    for prompt, one in zip(prompts, given, strict=True):
        with torch.inference_mode():
            expected = plain.generate(
                torch.tensor([prompt]), max_new_tokens=10, do_sample=False, eos_token_id=None
            )
            values = torch.log_softmax(plain(expected).logits[0], -1)[len(prompt) - 1 : -1]
        assert prompt + one.token_ids == expected[0].tolist()
        for row, candidates in zip(values, one.logprobs.positions(), strict=True):
            for candidate in candidates:
                assert candidate.logprob == pytest.approx(row[candidate.token_id].item(), abs=1e-4)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: str(case["name"]))
async def test_smollm2_answers_as_the_recorded_vllm(
    case: dict[str, Any], service: GenerateService
) -> None:
    recorded = case["answer"]
    given = await answer(service, ask(case["token_ids"], **case["sampling_params"]))
    (choice,) = given.choices
    assert choice.token_ids == recorded["token_ids"]
    assert choice.finish_reason == recorded["finish_reason"]
    assert choice.stop_reason == recorded["stop_reason"]
    _assert_close(choice.logprobs, recorded["logprobs"])
    _assert_close(given.prompt_logprobs, recorded["prompt_logprobs"])


def _assert_close(
    logprobs: Logprobs | None, recorded: list[list[tuple[int, float, int]]] | None
) -> None:
    """The recorded candidates, in their order, within 1e-3 nats and with their ranks."""
    if recorded is None:
        assert logprobs is None
        return
    assert logprobs is not None
    for found, wanted in zip(logprobs.positions(), recorded, strict=True):
        head = found[: len(wanted)]
        assert [(c.token_id, c.rank) for c in head] == [(i, rank) for i, _, rank in wanted]
        assert [c.logprob for c in head] == pytest.approx([v for _, v, _ in wanted], abs=1e-3)
