"""``triptych.client`` against the running stack, and against transformers."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.both_clients import HTTP, ask, ask_generate, parts
from support.stack import Stack
from support.tiny_models import plain_model
from triptych.client import AsyncGenerateClient, Client, GenerateClient, join_chat, join_completion
from triptych.client.fields import Message
from triptych.errors import ContextLengthError, InvalidRequestError, NotFoundError
from triptych.wire import GenerateRequest, SamplingParams, join_deltas

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

MESSAGES: list[Message] = [{"role": "user", "content": "Say hi 🙂"}]
TEXTS = ["The capital of France is Paris.", "世界 🙂 Ünïcödé"]


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.gateway) as opened:
        yield opened


@pytest.mark.parametrize("kind", HTTP)
def test_joined_streams_are_the_whole_replies(kind: str, stack: Stack) -> None:
    """For any reply: tests/unit/client/test_joining.py."""
    fields: dict[str, Any] = {"n": 2, "seed": 3, "temperature": 1.2, "max_tokens": 6}
    fields |= {"stop": ["a"], "return_token_ids": True, "prompt_logprobs": 1}
    chat = {**fields, "logprobs": True, "top_logprobs": 2}
    whole = ask(kind, stack.gateway, lambda c: c.chat(MESSAGES, **chat))
    chunks = parts(kind, stack.gateway, lambda c: c.stream_chat(MESSAGES, **chat))
    streamed: Any = join_chat(chunks)
    assert streamed.choices == whole.choices
    assert streamed.prompt_logprobs == whole.prompt_logprobs
    assert streamed.prompt_token_ids == whole.prompt_token_ids
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    completion = {**fields, "logprobs": 2, "echo": True}
    whole = ask(kind, stack.gateway, lambda c: c.complete(TEXTS, **completion))
    chunks = parts(kind, stack.gateway, lambda c: c.stream_complete(TEXTS, **completion))
    streamed = join_completion(chunks)
    assert streamed.choices == whole.choices
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("kind", HTTP)
def test_scores_are_those_of_transformers(kind: str, stack: Stack, smollm2_dir: Path) -> None:
    model = plain_model(smollm2_dir)
    scores = ask(kind, stack.gateway, lambda c: c.score_batch(TEXTS, top=2))
    for text, score in zip(TEXTS, scores, strict=True):
        ids = [token.token_id for token in score.tokens]
        with torch.inference_mode():
            rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        first, *scored = score.tokens
        assert (first.logprob, first.rank, first.candidates) == (None, None, [])
        for position, token in enumerate(scored):
            row = rows[position]
            assert token.logprob == pytest.approx(row[token.token_id].item(), abs=1e-4)
            assert token.rank == 1 + int((row > row[token.token_id]).sum())
            assert {2, 3} >= {len(token.candidates)}
            assert token.candidates[0].logprob == token.logprob
        total = sum(rows[at, token.token_id].item() for at, token in enumerate(scored))
        assert score.logprob == pytest.approx(total, abs=1e-3)
        assert score.perplexity == pytest.approx(math.exp(-total / len(scored)), rel=1e-4)
        assert "".join(token.token or "" for token in score.tokens) == text


def test_scores_over_both_doors_are_equal_to_the_bit(client: Client, stack: Stack) -> None:
    score = client.score(TEXTS[0], top=3)
    assert client.score_batch(TEXTS, top=3)[0] == score
    ids = [token.token_id for token in score.tokens]
    for kind in HTTP:
        other = ask_generate(kind, stack.generate_grpc, lambda c: c.score(ids, top=3))
        assert other.logprob == score.logprob
        for mine, theirs in zip(score.tokens, other.tokens, strict=True):
            assert (mine.logprob, mine.rank) == (theirs.logprob, theirs.rank)
            assert mine.candidates == theirs.candidates


@pytest.mark.parametrize("kind", HTTP)
def test_labels_have_the_logprobs_of_their_tokens_behind_the_prompt(
    kind: str, stack: Stack, client: Client
) -> None:
    prompt, labels = "The capital of France is", [" Paris", " Rome", " London", " Paris"]
    short = ask(kind, stack.gateway, lambda c: c.score_labels(prompt, labels))
    long = ask(kind, stack.gateway, lambda c: c.score_labels(prompt, [*labels, " New York City"]))
    assert [each.logprob for each in short] == [each.logprob for each in long[:-1]]
    assert [each.label for each in short] == labels
    assert len(long[-1].token_ids) > 1
    for each in long:
        whole = client.score(prompt + each.label)
        tail = whole.tokens[-len(each.token_ids) :]
        assert [token.token_id for token in tail] == each.token_ids
        assert each.logprob == math.fsum(token.logprob or 0 for token in tail)
    for group in (short, long):
        assert math.fsum(each.share for each in group) == pytest.approx(1)
        assert group[0].share > 0.4


def test_labels_may_be_ids_and_lie_anywhere_in_the_vocabulary(client: Client) -> None:
    prompt = client.tokenize("The capital of France is").tokens
    labels = [[token_id] for token_id in range(2000, 42000, 1300)]
    found = client.score_labels(prompt, labels)
    again = client.score_labels(prompt, [*labels, [2000, 2001]])
    assert [each.logprob for each in found] == [each.logprob for each in again[:-1]]


@pytest.mark.parametrize("kind", HTTP)
def test_panels_by_hand_give_the_gateways_reply(kind: str, stack: Stack) -> None:
    fields: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "logprobs": True}
    fields |= {"top_logprobs": 2}
    whole = ask(kind, stack.gateway, lambda c: c.chat(MESSAGES, **fields))
    request = ask(kind, stack.render, lambda c: c.render_chat(MESSAGES, **fields))
    answer = ask(kind, stack.generate, lambda c: c.generate(request))
    reply = ask(kind, stack.derender, lambda c: c.derender_chat(answer, MESSAGES, **fields))
    assert reply.choices == whole.choices
    assert reply.usage == whole.usage
    deltas = parts(kind, stack.generate, lambda c: c.stream_generate(request))
    assert join_deltas(deltas)[0] == answer.choices
    by_rpc = ask_generate(kind, stack.generate_grpc, lambda c: c.generate(request))
    assert by_rpc.choices == answer.choices


@pytest.mark.parametrize("kind", HTTP)
def test_completion_panels_by_hand_give_the_gateways_reply(kind: str, stack: Stack) -> None:
    fields: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "logprobs": 2, "echo": True}
    whole = ask(kind, stack.gateway, lambda c: c.complete(TEXTS, **fields))
    requests = ask(kind, stack.render, lambda c: c.render_completion(TEXTS, **fields))
    with Client(stack.generate) as generate:
        answers = [generate.generate(each) for each in requests]
    reply = ask(kind, stack.derender, lambda c: c.derender_completion(answers, TEXTS, **fields))
    assert reply.choices == whole.choices


def test_tokenizer_endpoints_round_trip(client: Client) -> None:
    tokens = client.tokenize(TEXTS[1])
    assert client.detokenize(tokens.tokens) == TEXTS[1]
    assert tokens.count == len(tokens.tokens)
    assert len(tokens.token_strs or []) == tokens.count
    ids = client.tokenize_chat(MESSAGES).tokens
    reply = client.chat(MESSAGES, max_tokens=1, return_token_ids=True)
    assert ids == reply.prompt_token_ids
    assert [model.id for model in client.models()] == ["smollm2"]


def test_worker_says_what_it_is_and_takes_a_stream_of_requests(stack: Stack) -> None:
    params = SamplingParams(max_tokens=5, temperature=0, logprobs=1)
    request = GenerateRequest(token_ids=[504, 3575, 282], sampling_params=params)
    with GenerateClient(stack.generate_grpc) as generate:
        assert generate.info().model == "smollm2"
        assert generate.abort(["nobody"]) == []
        choices, _ = join_deltas(generate.stream(request))
        assert choices == generate.generate(request).choices
    assert (len(choices[0].token_ids), choices[0].finish_reason) == (5, "length")

    async def same() -> Any:
        async with AsyncGenerateClient(stack.generate_grpc) as generate:
            assert await generate.abort(["nobody"]) == []
            assert (await generate.info()).model == "smollm2"
            return await asyncio.gather(*(generate.generate(request) for _ in range(4)))

    assert [answer.choices for answer in asyncio.run(same())] == [choices] * 4


@pytest.mark.parametrize("kind", HTTP)
def test_refusals_are_the_servers_own_errors(kind: str, stack: Stack) -> None:
    with pytest.raises(InvalidRequestError, match=r"top_p is 2\.0") as refused:
        ask(kind, stack.gateway, lambda c: c.chat(MESSAGES, top_p=2.0))
    assert refused.value.param == "top_p"
    with pytest.raises(ContextLengthError):
        parts(kind, stack.gateway, lambda c: c.stream_complete([1] * 10000))
    with pytest.raises(NotFoundError):
        ask(kind, stack.gateway, lambda c: c.render_chat(MESSAGES))
    cold = SamplingParams(temperature=-1)
    request = GenerateRequest(token_ids=[1], sampling_params=cold)
    with pytest.raises(InvalidRequestError, match="temperature"):
        ask_generate(kind, stack.generate_grpc, lambda c: c.generate(request))
