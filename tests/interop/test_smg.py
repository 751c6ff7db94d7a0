"""The SMG gateway in front of our generate, asked by the openai client beside our own gateway."""

import time
from typing import Any

import httpx
import openai
import pytest

from interop.chats import QUESTION, ask, ask_stream, joined
from support.stack import Stack


class GenerateEnds:
    """How requests ended in our generate since this was made, by its own metrics."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._before = self._read()

    def since(self) -> dict[str, int]:
        now = self._read()
        return {
            name: now[name] - self._before.get(name, 0)
            for name in now
            if now[name] != self._before.get(name, 0)
        }

    def _read(self) -> dict[str, int]:
        lines = httpx.get(f"{self._stack.generate}/metrics").text.splitlines()
        name = 'triptych_generate_requests_ended_total{reason="'
        found = [line.removeprefix(name).split('"} ') for line in lines if line.startswith(name)]
        return {reason: int(float(value)) for reason, value in found}


@pytest.fixture
def generate_ends(stack: Stack) -> GenerateEnds:
    return GenerateEnds(stack)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 24},
        {"max_tokens": 24, "temperature": 0.7, "seed": 5},
        {"max_tokens": 12, "temperature": 0.9, "seed": 3, "n": 2, "top_p": 0.9},
        {"max_tokens": 200},
    ],
)
def test_chat_is_that_of_our_own_gateway(smg: str, stack: Stack, fields: dict[str, Any]) -> None:
    theirs, ours = (ask(base, **fields) for base in (smg, stack.gateway))
    assert [choice.message.content for choice in theirs.choices] == [
        choice.message.content for choice in ours.choices
    ]
    assert [choice.finish_reason for choice in theirs.choices] == [
        choice.finish_reason for choice in ours.choices
    ]
    assert theirs.usage.completion_tokens == ours.usage.completion_tokens


@pytest.mark.parametrize("is_stream", [False, True])
def test_logprobs_are_those_of_our_own_gateway(smg: str, stack: Stack, is_stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    if is_stream:
        theirs, ours = (joined(ask_stream(base, **fields)) for base in (smg, stack.gateway))
        assert theirs == ours
        return
    mine, yours = (ask(base, **fields).choices[0].logprobs.content for base in (smg, stack.gateway))
    for entry, other in zip(mine, yours, strict=True):
        assert (entry.token, entry.logprob) == (other.token, other.logprob)
        assert [(each.token, each.logprob) for each in entry.top_logprobs] == [
            (each.token, each.logprob) for each in other.top_logprobs
        ]


@pytest.mark.parametrize("is_stream", [False, True])
def test_stop_string_is_matched_by_smg(smg: str, is_stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 40, "stop": ["versatile"]}
    if is_stream:
        text, _, finish = joined(ask_stream(smg, **fields))
    else:
        (choice,) = ask(smg, **fields).choices
        text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == ("1. Red: Red is a ", "stop")


def test_client_that_leaves_a_stream_aborts_the_request(
    smg: str, generate_ends: GenerateEnds
) -> None:
    chunks = ask_stream(smg, max_tokens=1500)
    next(iter(chunks))
    chunks.close()
    assert ends_within(generate_ends, 20) == {"abort": 1}


def test_client_that_leaves_a_whole_answer_cancels_it(
    smg: str, generate_ends: GenerateEnds
) -> None:
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1500, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{smg}/v1/chat/completions", json=body, timeout=httpx.Timeout(60, read=1.5))
    assert ends_within(generate_ends, 20) == {"client_gone": 1}


def ends_within(ends: GenerateEnds, limit_s: float) -> dict[str, int]:
    """How requests ended, as soon as one has."""
    deadline = time.monotonic() + limit_s
    while not (given := ends.since()):
        assert time.monotonic() < deadline, "the request goes on without its client"
        time.sleep(0.1)
    return given


def test_refusal_reaches_the_client(smg: str) -> None:
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        ask(smg, response_format={"type": "json_object"}, max_tokens=4)


def test_smg_sees_the_worker_and_its_load(smg: str) -> None:
    (load,) = httpx.get(f"{smg}/get_loads", timeout=20).json()["loads"]
    assert load["max_running_requests"] == 64
    assert load["max_total_num_tokens"] > 0
