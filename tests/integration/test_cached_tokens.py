"""``usage`` says how many prompt tokens were cached: in all answers."""

from typing import Any

import httpx
import pytest

from support.replies import COMPLETIONS, generate, post, streamed, whole
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]


def prompt(seed: int) -> list[int]:
    """150 tokens, two whole blocks of which can be cached."""
    return [1000 + (7 * seed + 13 * index) % 900 for index in range(150)]


def details(answer: Any) -> Any:
    return answer["usage"].get("prompt_tokens_details")


def test_repeated_prompt_is_told_as_cached_whole_and_streamed(stack: Stack) -> None:
    asked: dict[str, Any] = {"prompt": prompt(1), "max_tokens": 2, "n": 2}
    assert details(whole(stack, COMPLETIONS, **asked)) is None
    again = whole(stack, COMPLETIONS, **asked)
    assert again["usage"]["prompt_tokens"] == 150
    assert details(again) == {"cached_tokens": 128}
    assert details(streamed(stack, COMPLETIONS, **asked)[-1]) == {"cached_tokens": 128}


def test_prompts_of_one_request_add_up(stack: Stack) -> None:
    for seed in (2, 3):
        generate(stack, prompt(seed), max_tokens=1)
    answer = whole(stack, COMPLETIONS, prompt=[prompt(2), prompt(3)], max_tokens=1)
    assert details(answer) == {"cached_tokens": 256}


def test_another_salt_finds_nothing(stack: Stack) -> None:
    generate(stack, prompt(4), max_tokens=1)
    salted: dict[str, Any] = {"prompt": prompt(4), "max_tokens": 1, "cache_salt": "tenant"}
    assert details(whole(stack, COMPLETIONS, **salted)) is None
    assert details(whole(stack, COMPLETIONS, **salted)) == {"cached_tokens": 128}


def test_generate_tells_it_and_derender_repeats_it(stack: Stack) -> None:
    generate(stack, prompt(5), max_tokens=1)
    generated = generate(stack, prompt(5), max_tokens=1)
    assert details(generated) == {"cached_tokens": 128}
    reply = post(f"{stack.derender}{COMPLETIONS}/derender", generate_response=generated)
    assert details(reply) == {"cached_tokens": 128}


def test_metrics_count_what_was_looked_up_and_found(stack: Stack) -> None:
    before = metrics(stack)
    for _ in range(2):
        generate(stack, prompt(6), max_tokens=1)
    after = metrics(stack)
    assert after["queries_total"] - before["queries_total"] == 2 * 150
    assert after["hits_total"] - before["hits_total"] == 149


def metrics(stack: Stack) -> dict[str, float]:
    page = httpx.get(f"{stack.generate}/metrics", timeout=60).text
    prefix = "triptych_generate_prefix_cache_"
    lines = [line.split() for line in page.splitlines() if line.startswith(prefix)]
    return {name.removeprefix(prefix): float(value) for name, value in lines}
