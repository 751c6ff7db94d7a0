"""Scores through the whole product against a direct transformers computation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.replies import CHAT, COMPLETIONS, generate, post, streamed, text_of, whole
from support.stack import Stack
from support.tiny_models import plain_model
from unit.derender.toys import join_chunks

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

#: Log-probabilities of what follows each position, ``[positions, vocabulary]``.
Reference = Callable[[list[int]], torch.Tensor]

PROMPTS = [[504, 3575, 282, 4649, 314], [19556, 28]]
MESSAGES = [{"role": "user", "content": "Say hi 🙂"}]


@pytest.fixture(scope="module")
def logprobs_after(smollm2_dir: Path) -> Reference:
    model = plain_model(smollm2_dir)

    def compute(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([token_ids])).logits[0].float()
        return torch.log_softmax(logits, -1)

    return compute


def rank(row: torch.Tensor, token_id: int) -> int:
    return 1 + int((row > row[token_id]).sum())


def ids_of(names: Any) -> list[int]:
    return [int(name.removeprefix("token_id:")) for name in names]


def same_as_stream(stack: Stack, path: str, answer: Any, **fields: Any) -> None:
    """The joined stream of the same request has the same text, entries and reasons."""
    joined = join_chunks(streamed(stack, path, **fields))
    assert sorted(joined) == [choice["index"] for choice in answer["choices"]]
    for choice in answer["choices"]:
        mine = joined[choice["index"]]
        assert mine.text == text_of(choice)
        assert mine.logprobs == choice["logprobs"]
        assert mine.finish_reasons == [(choice["finish_reason"], choice["stop_reason"])]


def test_case_25_echo_of_a_batch_scores_prompt_and_output(
    stack: Stack, logprobs_after: Reference
) -> None:
    asked: dict[str, Any] = {
        "prompt": PROMPTS,
        "n": 2,
        "seed": 4,
        "temperature": 1.2,
        "max_tokens": 3,
        "echo": True,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }
    answer = whole(stack, COMPLETIONS, **asked)
    same_as_stream(stack, COMPLETIONS, answer, **asked)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for choice in answer["choices"]:
        prompt, shown = PROMPTS[choice["index"] // 2], choice["logprobs"]
        token_ids = ids_of(shown["tokens"])
        assert token_ids == prompt + choice["token_ids"]
        assert shown["token_logprobs"][0] is shown["top_logprobs"][0] is None
        values = logprobs_after(token_ids)
        for position, token_id in enumerate(token_ids[1:], 1):
            row = values[position - 1]
            listed = shown["top_logprobs"][position]
            assert ids_of(listed)[0] == token_id
            assert {*ids_of(listed)} == {token_id, *row.topk(2).indices.tolist()}
            assert listed[f"token_id:{token_id}"] == shown["token_logprobs"][position]
            for name, value in listed.items():
                assert value == pytest.approx(row[ids_of([name])[0]].item(), abs=1e-4)
        pieces = post(f"{stack.gateway}/detokenize", tokens=token_ids)["prompt"]
        assert choice["text"] == pieces


@pytest.mark.parametrize("n", [1, 2])
def test_case_27_echo_without_output_scores_texts_and_bills_no_token(
    stack: Stack, logprobs_after: Reference, n: int
) -> None:
    prompts = ["The capital of France is", "世界 🙂"]
    asked: dict[str, Any] = {
        "prompt": prompts,
        "n": n,
        "echo": True,
        "max_tokens": 0,
        "logprobs": 1,
        "prompt_logprobs": 1,
        "return_token_ids": True,
    }
    answer = whole(stack, COMPLETIONS, **asked)
    same_as_stream(stack, COMPLETIONS, answer, **asked)
    assert answer["usage"]["completion_tokens"] == 0
    assert len(answer["choices"]) == 2 * n
    for choice in answer["choices"]:
        assert choice["text"] == prompts[choice["index"] // n]
        assert (choice["token_ids"], choice["finish_reason"]) == ([], "length")
        token_ids = choice["prompt_token_ids"]
        values = logprobs_after(token_ids)
        assert len(choice["logprobs"]["tokens"]) == len(token_ids)
        assert choice["prompt_logprobs"][0] is None
        for position, token_id in enumerate(token_ids[1:], 1):
            row, listed = values[position - 1], choice["prompt_logprobs"][position]
            assert next(iter(listed)) == str(token_id)
            for key, entry in listed.items():
                assert entry["logprob"] == pytest.approx(row[int(key)].item(), abs=1e-4)
                assert entry["rank"] == rank(row, int(key))
            assert (
                choice["logprobs"]["token_logprobs"][position] == listed[str(token_id)]["logprob"]
            )


def test_chat_scores_prompt_and_output(stack: Stack, logprobs_after: Reference) -> None:
    asked: dict[str, Any] = {
        "messages": MESSAGES,
        "max_tokens": 5,
        "seed": 1,
        "temperature": 1.3,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }
    answer = whole(stack, CHAT, **asked)
    same_as_stream(stack, CHAT, answer, **asked)
    prompt = answer["prompt_token_ids"]
    for choice in answer["choices"]:
        values = logprobs_after(prompt + choice["token_ids"])
        for position, token_id in enumerate(prompt[1:], 1):
            ((key, entry),) = answer["prompt_logprobs"][position].items()
            row = values[position - 1]
            assert (key, entry["rank"]) == (str(token_id), rank(row, token_id))
            assert entry["logprob"] == pytest.approx(row[token_id].item(), abs=1e-4)
        entries = choice["logprobs"]["content"]
        assert [entry["token_id"] for entry in entries] == choice["token_ids"]
        for row, entry in zip(values[len(prompt) - 1 :], entries, strict=False):
            best = [i for i in row.topk(3).indices.tolist() if i != entry["token_id"]]
            listed = [each["token_id"] for each in entry["top_logprobs"]]
            assert listed == [entry["token_id"], *best][:3]
            for each in (entry, *entry["top_logprobs"]):
                assert each["logprob"] == pytest.approx(row[each["token_id"]].item(), abs=1e-4)


def test_all_26_labels_are_keys_with_their_full_vocabulary_values(
    stack: Stack, logprobs_after: Reference
) -> None:
    """The request of a client that scores labels: a prompt, one token, the labels allowed."""
    letters = [f" {chr(code)}" for code in range(ord("A"), ord("Z") + 1)]
    labels = [post(f"{stack.gateway}/tokenize", prompt=each)["tokens"] for each in letters]
    assert all(len(ids) == 1 for ids in labels)
    asked: dict[str, Any] = {
        "prompt": "Answer with one letter. Answer:",
        "max_tokens": 1,
        "logprobs": 26,
        "allowed_token_ids": [ids[0] for ids in labels],
        "return_token_ids": True,
    }
    answer = whole(stack, COMPLETIONS, **asked, temperature=0)
    same_as_stream(stack, COMPLETIONS, answer, **asked, temperature=0)
    (choice,) = answer["choices"]
    (listed,) = choice["logprobs"]["top_logprobs"]
    row = logprobs_after(choice["prompt_token_ids"])[-1]
    assert sorted(listed) == letters
    for letter, (token_id,) in zip(letters, labels, strict=True):
        assert listed[letter] == pytest.approx(row[token_id].item(), abs=1e-4)
    by_id = whole(stack, COMPLETIONS, **asked, temperature=0, return_tokens_as_token_ids=True)[
        "choices"
    ][0]["logprobs"]
    assert {f"token_id:{ids[0]}" for ids in labels} == by_id["top_logprobs"][0].keys()
    assert [*by_id["top_logprobs"][0].values()] == [*listed.values()]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_case_16_listed_ids_are_shown_in_the_requests_order(
    stack: Stack, logprobs_after: Reference, path: str
) -> None:
    labels = [330, 9, 49151, 2683]
    asked: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "return_token_ids": True}
    asked |= {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPTS[0]}
    answer = whole(stack, path, **asked, logprob_token_ids=labels)
    same_as_stream(stack, path, answer, **asked, logprob_token_ids=labels)
    (choice,) = answer["choices"]
    prompt = (answer if path == CHAT else choice)["prompt_token_ids"]
    values = logprobs_after(prompt + choice["token_ids"])[len(prompt) - 1 :]
    for position, token_id in enumerate(choice["token_ids"]):
        row = values[position]
        if path == CHAT:
            listed = choice["logprobs"]["content"][position]["top_logprobs"]
            assert [each["token_id"] for each in listed] == [token_id, *labels]
            found = [each["logprob"] for each in listed]
        else:
            found = [*choice["logprobs"]["top_logprobs"][position].values()]
        wanted = [row[each].item() for each in (token_id, *labels)]
        assert found == pytest.approx(wanted, abs=1e-4)


def test_cases_30_33_generate_says_which_values_it_sent(
    stack: Stack, logprobs_after: Reference
) -> None:
    """Raw: of the model, whatever the temperature. Processed: of what was sampled from."""
    (prompt, _), temperature = PROMPTS, 0.5
    row = logprobs_after(prompt)[-1]
    wanted = {
        "raw": row,
        "processed": torch.log_softmax(row / temperature, -1),
    }
    params = {"max_tokens": 1, "logprobs": 4, "temperature": temperature, "seed": 2}
    for mode, values in wanted.items():
        answer = generate(stack, prompt, **params, logprobs_mode=mode)
        assert answer["logprobs_mode"] == mode
        (entry,) = answer["choices"][0]["logprobs"]["content"]
        for each in entry["top_logprobs"]:
            assert each["logprob"] == pytest.approx(values[each["token_id"]].item(), abs=1e-4)
            assert each["rank"] == rank(values, each["token_id"])
        shown = whole(stack, COMPLETIONS, prompt=prompt, **params, logprobs_mode=mode)["choices"][
            0
        ]["logprobs"]
        assert shown["token_logprobs"] == [entry["logprob"]]


def test_strings_as_ids_keep_text_bytes_and_offsets(stack: Stack) -> None:
    asked: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    plain, named = (
        whole(stack, COMPLETIONS, prompt=PROMPTS[0], logprobs=1, **asked, **fields)["choices"][0]
        for fields in ({}, {"return_tokens_as_token_ids": True})
    )
    assert named["text"] == plain["text"]
    for name in ("token_logprobs", "text_offset"):
        assert named["logprobs"][name] == plain["logprobs"][name]
    asked |= {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
    plain, named = (
        whole(stack, CHAT, **asked, **fields)["choices"][0]
        for fields in ({}, {"return_tokens_as_token_ids": True})
    )
    for entry, other in zip(
        named["logprobs"]["content"], plain["logprobs"]["content"], strict=True
    ):
        assert entry["token"] == f"token_id:{entry['token_id']}"
        assert (entry["bytes"], entry["logprob"]) == (other["bytes"], other["logprob"])


@pytest.mark.parametrize(("n", "k"), [(1, None), (1, 0), (2, 2)])
def test_cases_17_19_20_both_endpoints_have_their_own_shape_whenever_asked(
    stack: Stack, n: int, k: int | None
) -> None:
    asked: dict[str, Any] = {"max_tokens": 2, "seed": 3, "n": n}
    chat = asked | {"messages": MESSAGES}
    chat |= {} if k is None else {"logprobs": True, "top_logprobs": k}
    completion = asked | {"prompt": PROMPTS[1], "logprobs": k}
    for path, fields in ((CHAT, chat), (COMPLETIONS, completion)):
        answer = whole(stack, path, **fields)
        same_as_stream(stack, path, answer, **fields)
        assert len(answer["choices"]) == n
        for choice in answer["choices"]:
            shown = choice["logprobs"]
            if k is None:
                assert shown is None
            elif path == CHAT:
                assert shown.keys() == {"content"}
                for entry in shown["content"]:
                    assert entry.keys() == {"token", "logprob", "bytes", "token_id", "top_logprobs"}
                    assert len(entry["top_logprobs"]) == k
            else:
                assert shown.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
                for listed in shown["top_logprobs"]:
                    assert len(listed) in ((1,) if k == 0 else (k, k + 1))
