"""generate's JSON answers beside those recorded with vLLM: shapes, ids, logprobs, refusals."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

RECORDINGS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "vllm_generate.json").read_text()
)

#: Served by vLLM and refused here: they need text, and generate has no tokenizer.
NEEDS_TEXT = {
    "20_generate_bad_words",
    "20_generate_stop",
    "20_generate_stop_include",
    "20_generate_text_mode",
    "20_generate_text_mode_stream",
    "20_generate_text_stop",
}
#: Refused by vLLM and served here: scoring alone, label ids, n greedy choices.
SERVED_HERE = {
    "20_generate_logprob_token_ids",
    "20_generate_n2_temp0",
    "60_err_gen_max0",
}
#: Sampled at temperature 1: the two generators draw differently.
RANDOM = {
    "20_generate_defaults",
    "20_generate_n2",
    "20_generate_n2_stream",
    "20_generate_unknown_field",
}
#: Our context is the model's 8192 tokens; the recorded server's was cut to 4096.
OTHER_CONTEXT = {"60_err_gen_exact_len", "60_err_gen_len_plus_max", "60_err_gen_toolong"}
#: Candidates are the best among the allowed ids here (logprobs.md, section 1).
ALLOWED_ONLY = {"20_generate_allowed", "20_generate_lp0_notintop", "20_generate_lp1_notintop"}
ALLOWED_ONLY |= {"20_generate_lp3_notintop"}


def served(names: set[str]) -> list[str]:
    return sorted(name for name in names if RECORDINGS[name]["status"] == 200)


ALL = set(RECORDINGS) - OTHER_CONTEXT


def send(stack: Stack, name: str) -> httpx.Response:
    asked = RECORDINGS[name]["request"]
    body = asked.get("json", asked.get("raw"))
    if isinstance(body, dict) and body.get("model") == "smol":
        body = {**body, "model": "smollm2"}
    content = body if isinstance(body, str) else json.dumps(body) if body is not None else None
    return httpx.request(
        asked["method"], stack.generate + asked["path"], content=content, timeout=60
    )


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def shape(value: Any) -> Any:
    """Field names all the way down; scalars and empty places are alike."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items() if not key.isdecimal()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return None


def joined(answers: list[Any]) -> list[tuple[list[int], list[Any], Any, Any]]:
    """Per choice: ids, logprob entries, finish and stop reason, from a whole answer or a stream."""
    choices: dict[int, list[Any]] = {}
    for answer in answers:
        for choice in answer["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return [
        (
            [each for part in parts for each in part["token_ids"]],
            [each for part in parts for each in (part["logprobs"] or {"content": []})["content"]],
            parts[-1]["finish_reason"],
            parts[-1]["stop_reason"],
        )
        for _, parts in sorted(choices.items())
    ]


@pytest.mark.parametrize("name", served(ALL - NEEDS_TEXT))
def test_answer_agrees_with_the_recording(stack: Stack, name: str) -> None:
    answer = send(stack, name)
    assert answer.status_code == 200, answer.text
    recorded = RECORDINGS[name]["answer"]
    is_stream = isinstance(recorded, list)
    ours = events(answer.text) if is_stream else [answer.json()]
    theirs = recorded if is_stream else [recorded]
    compare_fields(ours[0], theirs[0])
    if name in RANDOM:
        return
    for mine, yours in zip(joined(ours), joined(theirs), strict=True):
        assert mine[0] == yours[0]
        assert mine[2:] == yours[2:]
        for entry, other in zip(mine[1], yours[1], strict=True):
            compare(entry, other, candidates=name not in ALLOWED_ONLY)
    if not is_stream:
        compare_prompt(ours[0]["prompt_logprobs"], theirs[0]["prompt_logprobs"])
        assert ours[0]["usage"] == theirs[0]["usage"]
        assert ours[0]["prompt_token_ids"] == theirs[0]["prompt_token_ids"]


def compare_fields(answer: Any, recorded: Any) -> None:
    ours, theirs = shape(answer), shape(recorded)
    for each in (ours, theirs):
        # ours alone: logprobs_mode, prompt_logprobs in a stream; theirs alone: weight versions
        each.pop("logprobs_mode", None)
        each.pop("prompt_logprobs", None)
        each["choices"][0].pop("weight_versions", None)
    assert ours == theirs


def compare(entry: Any, other: Any, *, candidates: bool) -> None:
    assert (entry["token_id"], entry["rank"]) == (other["token_id"], other["rank"])
    assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
    if candidates:
        ours = {each["token_id"]: each["logprob"] for each in entry["top_logprobs"]}
        theirs = {each["token_id"]: each["logprob"] for each in other["top_logprobs"]}
        assert ours == pytest.approx(theirs, abs=1e-3)
        assert list(ours) == list(theirs)


def compare_prompt(ours: Any, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    for mine, yours in zip(ours or [], theirs or [], strict=True):
        assert (mine is None) == (yours is None)
        for token_id, value in (yours or {}).items():
            assert mine[token_id]["logprob"] == pytest.approx(value["logprob"], abs=1e-3)
            assert mine[token_id]["rank"] == value["rank"]


@pytest.mark.parametrize("name", sorted(NEEDS_TEXT))
def test_what_needs_text_is_refused(stack: Stack, name: str) -> None:
    answer = send(stack, name)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] in {
        "sampling_params.stop",
        "sampling_params.bad_words",
        "output_mode",
    }


@pytest.mark.parametrize("name", sorted(SERVED_HERE))
def test_what_only_we_serve_is_served(stack: Stack, name: str) -> None:
    assert send(stack, name).status_code == 200


@pytest.mark.parametrize(
    "name",
    sorted(name for name in ALL - SERVED_HERE if RECORDINGS[name]["status"] >= 400),
)
def test_refusal_has_the_recorded_status(stack: Stack, name: str) -> None:
    answer = send(stack, name)
    assert answer.status_code == RECORDINGS[name]["status"]
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
