"""On a CUDA device: the same greedy ids as transformers there, and the same bits in any batch."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from triptych.wire import GenerateRequest, SamplingParams, join_deltas
from triptych_generate.options import DTypeName, EngineOptions
from triptych_generate.service import GenerateService

pytestmark = [pytest.mark.gpu, pytest.mark.model]

PROMPTS = [[504, 3575, 282, 4649, 314], [19556], list(range(1000, 1150))]


async def answers(service: GenerateService, prompts: list[list[int]]) -> list[object]:
    async def one(ids: list[int]) -> object:
        params = SamplingParams(temperature=0, max_tokens=16, logprobs=5)
        request = GenerateRequest(token_ids=ids, sampling_params=params)
        return join_deltas([delta async for delta in service.generate(request)])[0]

    return list(await asyncio.gather(*(one(ids) for ids in prompts)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_cuda_gives_the_same_bits_alone_and_together(
    smollm2_dir: Path, dtype: DTypeName
) -> None:
    options = EngineOptions(
        model_dir=smollm2_dir, served_model_name="m", device="cuda", dtype=dtype
    )
    service = GenerateService.load(options)
    service.start()
    alone = [(await answers(service, [ids]))[0] for ids in PROMPTS]
    together = await answers(service, PROMPTS)
    await service.stop()
    assert service.info().invariant
    assert alone == together


async def test_cuda_greedy_ids_equal_transformers(smollm2_dir: Path) -> None:
    options = EngineOptions(model_dir=smollm2_dir, served_model_name="m", device="cuda")
    service = GenerateService.load(options)
    service.start()
    ours = await answers(service, PROMPTS)
    await service.stop()
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).to("cuda")
    for ids, choices in zip(PROMPTS, ours, strict=True):
        prompt = torch.tensor([ids], device="cuda")
        expected = model.generate(prompt, max_new_tokens=16, do_sample=False)[
            0, len(ids) :
        ].tolist()
        assert isinstance(choices, list)
        assert choices[0].token_ids == expected
