"""Stops through the whole product: where text, ids, entries and usage end, whole and streaming."""

from typing import Any

import httpx
import pytest

from support.replies import CHAT, COMPLETIONS, streamed, text_of, whole
from support.stack import Stack
from unit.derender.toys import join_chunks

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

FRANCE = "The capital of France is"
#: Greedy goes on with the same word: a space, then two characters over two and three tokens.
WORLD = "世界 世界 世界 世界 世界"


GREEDY = {"max_tokens": 12, "temperature": 0, "logprobs": 0, "return_token_ids": True}


def complete(stack: Stack, prompt: str, **fields: Any) -> tuple[Any, Any]:
    """The whole reply's choice and usage, after the joined stream was found to be the same."""
    asked = {"prompt": prompt, **GREEDY, **fields}
    answer = whole(stack, COMPLETIONS, **asked)
    (choice,) = answer["choices"]
    *parts, last = streamed(stack, COMPLETIONS, **asked)
    joined = join_chunks(parts)[0]
    assert joined.text == choice["text"]
    assert joined.token_ids == choice["token_ids"]
    assert joined.logprobs == choice["logprobs"]
    assert joined.finish_reasons == [(choice["finish_reason"], choice["stop_reason"])]
    assert last["usage"].items() <= answer["usage"].items()
    return choice, answer["usage"]


def ends_with(choice: Any, usage: Any, num_tokens: int) -> bool:
    """Whether ids, entries and usage end with the same token."""
    counts = {
        len(choice["token_ids"]),
        len(choice["logprobs"]["tokens"]),
        len(choice["logprobs"]["text_offset"]),
        usage["completion_tokens"],
    }
    return counts == {num_tokens}


@pytest.fixture(scope="module")
def free(stack: Stack) -> Any:
    """What follows without any stop: " Paris", ".", and so on."""
    (choice,) = whole(stack, COMPLETIONS, prompt=FRANCE, **GREEDY)["choices"]
    assert choice["finish_reason"] == "length"
    return choice


@pytest.fixture(scope="module")
def free_world(stack: Stack) -> Any:
    (choice,) = whole(stack, COMPLETIONS, prompt=WORLD, **GREEDY)["choices"]
    assert choice["logprobs"]["tokens"] == [" ", "", "世", "", "", "界"] * 2
    return choice


@pytest.mark.parametrize("is_kept", [False, True])
def test_cases_35_38_stop_string_over_three_tokens(stack: Stack, free: Any, is_kept: bool) -> None:
    tokens = free["logprobs"]["tokens"]
    first = next(  # of three tokens that no earlier text holds, begun and ended inside a token
        index for index in range(3, 10) if len(tokens[index]) > 2 and len(tokens[index + 1]) > 2
    )
    stop = tokens[first][2:] + tokens[first + 1] + tokens[first + 2][:1]
    before = free["text"].partition(stop)[0]
    choice, usage = complete(stack, FRANCE, stop=stop, include_stop_str_in_output=is_kept)
    assert choice["text"] == before + stop * is_kept
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["logprobs"]["tokens"] == tokens[: first + 3]
    assert ends_with(choice, usage, first + 3)
    cut = [min(offset, len(choice["text"])) for offset in free["logprobs"]["text_offset"]]
    assert choice["logprobs"]["text_offset"] == cut[: first + 3]


def test_two_stop_strings_complete_in_one_token_and_the_earlier_one_counts(
    stack: Stack, free: Any
) -> None:
    assert free["text"].startswith(" Paris")
    for stops in (["is", "ar"], ["ar", "is"], ["is", "aris", "ari"]):
        choice, usage = complete(stack, FRANCE, stop=stops)
        assert (choice["text"], choice["finish_reason"]) == (" P", "stop")
        assert choice["stop_reason"] == ("ari" if "ari" in stops else "ar")
        assert ends_with(choice, usage, 1)


def test_stop_string_of_one_character_that_is_three_tokens(stack: Stack, free_world: Any) -> None:
    choice, usage = complete(stack, WORLD, stop=["界"])
    assert (choice["text"], choice["stop_reason"]) == (" 世", "界")
    assert choice["token_ids"] == free_world["token_ids"][:6]
    assert ends_with(choice, usage, 6)


@pytest.mark.parametrize("is_kept", [False, True])
def test_stop_token_inside_a_character(stack: Stack, free_world: Any, is_kept: bool) -> None:
    """The pending byte shows as one U+FFFD, whether or not the stop token's is among them."""
    stop_id = free_world["token_ids"][4]
    choice, usage = complete(
        stack, WORLD, stop_token_ids=[stop_id], include_stop_str_in_output=is_kept
    )
    assert choice["text"] == " 世\ufffd"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_id)
    assert choice["token_ids"] == free_world["token_ids"][:5]
    assert ends_with(choice, usage, 5)


def test_min_tokens_delays_both_kinds_of_stop(stack: Stack, free_world: Any) -> None:
    word_len = 6
    by_text, usage = complete(stack, WORLD, stop="界", min_tokens=word_len)
    assert by_text["text"] == " 世界 世"
    assert ends_with(by_text, usage, 2 * word_len)
    stop_id = free_world["token_ids"][0]  # until then it is not sampled
    by_id, usage = complete(stack, WORLD, stop_token_ids=[stop_id], min_tokens=4, max_tokens=4)
    assert stop_id not in by_id["token_ids"]
    assert by_id["finish_reason"] == "length"
    assert ends_with(by_id, usage, 4)


@pytest.mark.parametrize("is_stream", [False, True])
def test_case_38_the_worker_is_told_to_stop(stack: Stack, is_stream: bool) -> None:
    """The request is known to generate no more, though it was allowed thousands of tokens."""
    name = f"stopped-{is_stream}"
    body = {
        "model": "smollm2",
        "prompt": FRANCE,
        "max_tokens": 4000,
        "temperature": 0,
        "stop": "Paris",
        "stream": is_stream,
        "ignore_eos": True,
    }
    answer = httpx.post(
        f"{stack.gateway}/v1/completions", json=body, headers={"x-request-id": name}, timeout=60
    )
    assert answer.status_code == 200
    # A later request on the same connection to the worker is served after the cancellation.
    whole(stack, COMPLETIONS, prompt=FRANCE, max_tokens=1)
    ids = {"request_ids": [f"cmpl-{name}", f"cmpl-{name}-0", name]}
    aborted = httpx.post(f"{stack.generate}/inference/v1/abort_requests", json=ids).json()
    assert aborted == {"aborted": []}


def test_case_57_the_next_turn_begins_with_the_ids_of_the_last(stack: Stack) -> None:
    """Two turns of which the first ended by itself and the second by its length.

    After the first, history is the same ids; after the second, only the end of turn is new.
    """
    messages: list[dict[str, str]] = [{"role": "user", "content": "Hi"}]
    seen: list[int] = []
    for max_tokens, finish_reason in ((20, "stop"), (3, "length"), (1, "length")):
        answer = whole(
            stack,
            CHAT,
            messages=messages,
            max_tokens=max_tokens,
            temperature=0,
            return_token_ids=True,
        )
        prompt = answer["prompt_token_ids"]
        pairs = enumerate(zip(prompt, seen, strict=False))
        first_difference = next((number for number, (new, old) in pairs if new != old), None)
        assert first_difference is None
        assert len(prompt) > len(seen)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == finish_reason
        seen = prompt + choice["token_ids"]
        messages = [
            *messages,
            {"role": "assistant", "content": text_of(choice)},
            {"role": "user", "content": "And now?"},
        ]
