"""Faults of other systems in the number and the values of logprobs: a tiny model, then derender."""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from support.generate_runs import Answer, answer, answers, ask, running_service
from support.net import http_client
from support.tiny_models import VOCAB_SIZE, make_tiny_model, plain_model
from triptych.errors import InvalidRequestError
from triptych.json_bodies import encode_generate_response
from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import ReplySpec
from triptych.wire import Generated
from triptych_generate.http import create_generate_app
from triptych_generate.service import GenerateService
from unit.derender.toys import TABLES, toy_derenderer, whole_body
from unit.derender.toys import answer as made_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Its first ids are single bytes, so that it names every id of the tiny model.
DERENDERER = toy_derenderer(TABLES["byte_level"], max_logprobs=-1)
PROMPT = list(range(20, 30))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama", tmp_path_factory.mktemp("llama"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model_dir: Path) -> AsyncIterator[GenerateService]:
    async with running_service(model_dir, max_model_len=64) as started:
        yield started


def generated(given: Answer) -> Generated:
    return Generated(
        request_id="r",
        model="toy",
        created=1,
        prompt_tokens=len(PROMPT),
        choices=given.choices,
        prompt_logprobs=given.prompt_logprobs,
        prompt_token_ids=PROMPT,
    )


def shown(given: Answer, **fields: Any) -> list[Any]:
    """The ``logprobs`` of every choice."""
    spec = ReplySpec(**{"model": "toy", "logprobs": True, **fields})
    return [
        choice["logprobs"] for choice in whole_body(DERENDERER, spec, generated(given))["choices"]
    ]


async def test_case_14_chat_shows_k_and_completions_k_or_one_more(
    service: GenerateService,
) -> None:
    params = {"n": 4, "max_tokens": 8, "temperature": 1.5, "seed": 3, "logprobs": 3}
    given = await answer(service, ask(PROMPT, **params))
    chat = shown(given, endpoint="chat", top_logprobs=3)
    completions = shown(given, endpoint="completions", top_logprobs=3)
    sizes = set()
    for choice, entries, arrays in zip(given.choices, chat, completions, strict=True):
        assert choice.logprobs
        for position, candidates in enumerate(choice.logprobs.positions()):
            sampled = candidates[0]
            sizes.add(sampled.rank <= 3)
            listed = entries["content"][position]["top_logprobs"]
            assert [each["token_id"] for each in listed] == [c.token_id for c in candidates[:3]]
            assert len(arrays["top_logprobs"][position]) == (3 if sampled.rank <= 3 else 4)
            # the same float under its key and in the list of the sampled ones
            first = next(iter(arrays["top_logprobs"][position].values()))
            assert first == arrays["token_logprobs"][position] == pytest.approx(sampled.logprob)
    assert sizes == {True, False}


async def test_case_16_listed_ids_are_scored_without_logprobs(
    service: GenerateService, model_dir: Path
) -> None:
    labels = [150, 3, 77, 3]
    given = await answer(service, ask(PROMPT, max_tokens=1, logprob_token_ids=labels))
    (candidates,) = given.logprobs.positions()
    assert [c.token_id for c in candidates] == [given.token_ids[0], 150, 3, 77]
    with torch.inference_mode():
        row = torch.log_softmax(plain_model(model_dir)(torch.tensor([PROMPT])).logits[0, -1], -1)
    for candidate in candidates:
        assert candidate.logprob == pytest.approx(row[candidate.token_id].item(), abs=1e-4)
        assert candidate.rank == 1 + int((row > row[candidate.token_id]).sum())
    (arrays,) = shown(given, endpoint="completions", top_logprobs=None)
    assert len(arrays["top_logprobs"][0]) == 4


async def test_case_28_masked_ids_leave_as_minus_9999(service: GenerateService) -> None:
    allowed = [40, 41, 42, 43]
    given = await answer(
        service,
        ask(
            PROMPT,
            max_tokens=3,
            logprobs=4,
            temperature=0.01,
            top_k=1,
            allowed_token_ids=allowed,
            logprobs_mode="processed",
        ),
    )
    for candidates in given.logprobs.positions():
        assert [c.logprob for c in candidates] == [0.0, -9999.0, -9999.0, -9999.0]
        assert sorted(c.token_id for c in candidates) == allowed
    sent = json.loads(encode_generate_response(generated(given)))
    (entry, *_) = sent["choices"][0]["logprobs"]["content"]
    assert [each["logprob"] for each in entry["top_logprobs"]] == [0.0, *[-9999.0] * 3]
    (arrays,) = shown(given, endpoint="completions", top_logprobs=4)
    assert sorted(arrays["top_logprobs"][0].values()) == [*[-9999.0] * 3, 0.0]


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
async def test_cases_28_29_no_place_of_a_reply_holds_what_json_cannot(value: float) -> None:
    """Sampled, candidate and prompt entry; NaN gets here only from another engine over gRPC."""
    scores = pack_logprobs([[(97, value, 2), (98, value, 3)]])
    asked = made_answer(
        [97],
        prompt=[1, 97],
        logprobs=scores,
        prompt_logprobs=Logprobs(counts=[0, 1], token_ids=[97], logprobs=[value], ranks=[2]),
    )
    base: dict[str, Any] = {"model": "toy", "logprobs": True, "prompt_logprobs": True}
    completion = ReplySpec(endpoint="completions", echo=True, top_logprobs=1, **base)
    (choice,) = whole_body(DERENDERER, completion, asked)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -9999.0, -9999.0]
    assert choice["logprobs"]["top_logprobs"][2] == {"a": -9999.0, "b": -9999.0}
    assert choice["prompt_logprobs"][1]["97"]["logprob"] == -9999.0
    chat = whole_body(DERENDERER, ReplySpec(endpoint="chat", top_logprobs=2, **base), asked)
    (entry,) = chat["choices"][0]["logprobs"]["content"]
    assert [each["logprob"] for each in (entry, *entry["top_logprobs"])] == [-9999.0] * 3
    assert chat["prompt_logprobs"][1]["97"]["logprob"] == -9999.0


async def test_case_29_nan_in_json_is_refused() -> None:
    """It is no JSON; an engine that writes it is at fault, and its answer is not guessed at."""
    entry: dict[str, Any] = {"token_id": 97, "logprob": "?", "rank": 1, "top_logprobs": []}
    choice = {"index": 0, "token_ids": [97], "logprobs": {"content": [entry]}}
    body = json.dumps({"generate_response": {"request_id": "r", "choices": [choice]}})
    for value in ("NaN", "-Infinity", '"NaN"', "null"):
        with pytest.raises(InvalidRequestError, match=r"not valid JSON|logprob: Expected `float`"):
            DERENDERER.derender_chat(body.replace('"?"', value).encode())


async def test_case_32_the_same_bits_in_a_batch_of_1_8_and_64(model_dir: Path) -> None:
    draw = random.Random(7)
    prompts = [
        [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 40))] for _ in range(64)
    ]
    requests = [ask(each, max_tokens=4, logprobs=2, prompt_logprobs=1) for each in prompts]
    async with running_service(model_dir, kv_cache_bytes=1 << 23) as service:
        for num in (1, 8, 64):
            given = await answers(service, requests[:num])
            if num == 1:
                alone = given[0]
            assert given[0].choices == alone.choices
            assert given[0].prompt_logprobs == alone.prompt_logprobs


@pytest.mark.parametrize("which", [0, 1])
async def test_case_34_ids_and_entries_end_together_at_any_of_two_eos(
    which: int, model_dir: Path, tmp_path: Path
) -> None:
    with torch.inference_mode():
        plain = plain_model(model_dir).generate(
            torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False
        )
    eos = plain[0, len(PROMPT) + 4].item()
    both = [198, 198]
    both[which] = eos
    async with running_service(make_tiny_model("llama", tmp_path, eos_token_id=both)) as service:
        given = await answer(service, ask(PROMPT, max_tokens=8, logprobs=1))
    assert given.token_ids[-1] == eos
    assert len(given.token_ids) == len(given.logprobs) < 8
    body = whole_body(
        DERENDERER,
        ReplySpec(endpoint="chat", model="toy", logprobs=True, top_logprobs=1),
        generated(given),
    )
    assert len(body["choices"][0]["logprobs"]["content"]) == len(given.token_ids)
    assert body["usage"]["completion_tokens"] == len(given.token_ids)


async def test_case_60_omitted_max_tokens_is_the_context_left_and_not_16(
    service: GenerateService,
) -> None:
    app = create_generate_app(service, max_body_bytes=1 << 20)
    async with http_client(app) as client:
        lengths = []
        for fields in ({}, {"max_tokens": None}, {"max_tokens": 16}):
            params = {"temperature": 0, "ignore_eos": True, **fields}
            body = {"token_ids": PROMPT, "sampling_params": params}
            answered = (await client.post("/inference/v1/generate", json=body)).json()
            lengths.append(len(answered["choices"][0]["token_ids"]))
    assert lengths == [64 - len(PROMPT), 64 - len(PROMPT), 16]
