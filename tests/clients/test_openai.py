"""The newest openai client from PyPI against the running stack.

The product's own environment locks its version of the client and tests the replies in depth; here
is what the client builds on top of them.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from clients.conftest import API_KEY
from clients.direct import DirectModel
from support.stack import Stack

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.gateway}/v1", max_retries=0) as opened:
        yield opened


def test_key_is_taken_from_the_environment_and_a_wrong_one_refused(
    client: openai.OpenAI, stack: Stack
) -> None:
    assert client.api_key == API_KEY
    with (
        openai.OpenAI(base_url=f"{stack.gateway}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.status_code == 401


def test_served_model_can_be_retrieved(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert client.models.retrieve("smollm2") == listed
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-2")
    assert caught.value.code == "model_not_found"


def test_stream_put_together_by_the_client_is_the_whole_answer(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "smollm2",
        "messages": MESSAGES,
        "max_completion_tokens": 40,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "stop": ["."],
        "n": 2,
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
        seen = [event.type for event in events]
        joined = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.done"} <= set(seen)
    assert joined.usage == whole.usage
    for mine, choice in zip(joined.choices, whole.choices, strict=True):
        assert mine.message.content == choice.message.content
        assert mine.finish_reason == choice.finish_reason == "stop"
        assert mine.logprobs is not None
        assert choice.logprobs is not None
        assert mine.logprobs.content == choice.logprobs.content


def test_echo_scores_ids_as_the_direct_computation(
    client: openai.OpenAI, direct: DirectModel, tokenizer: Any
) -> None:
    texts = ["The capital of France is Paris.", "naïve 中文 😀 text"]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    answer = client.completions.create(
        model="smollm2", prompt=prompts, max_tokens=0, echo=True, logprobs=5
    )
    for ids, text, choice in zip(prompts, texts, answer.choices, strict=True):
        scores = direct.scores(ids)
        logprobs = choice.logprobs
        assert choice.text == text
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.top_logprobs is not None
        assert logprobs.token_logprobs[0] is None
        assert logprobs.token_logprobs[1:] == pytest.approx(scores.own, abs=1e-4)
        best = [max(each.values()) for each in logprobs.top_logprobs[1:]]
        assert best == pytest.approx(scores.best, abs=1e-4)


def test_one_request_may_hold_more_prompts_than_may_wait(client: openai.OpenAI) -> None:
    prompts = [[504, 3575, index] for index in range(100, 500)]
    answer = client.completions.create(model="smollm2", prompt=prompts, max_tokens=1, temperature=0)
    assert [choice.index for choice in answer.choices] == list(range(400))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 400


async def answers_at_the_same_time(base_url: str) -> list[str | None]:
    async with openai.AsyncOpenAI(base_url=base_url, max_retries=0) as client:
        made = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="smollm2", messages=MESSAGES, max_tokens=8, seed=seed % 2, temperature=1.5
                )
                for seed in range(8)
            )
        )
    return [each.choices[0].message.content for each in made]


def test_answers_at_the_same_time_do_not_mix(stack: Stack) -> None:
    texts = asyncio.run(answers_at_the_same_time(f"{stack.gateway}/v1"))
    assert texts == texts[:2] * 4
    assert texts[0] != texts[1]
