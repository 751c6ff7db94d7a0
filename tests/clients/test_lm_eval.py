"""lm-eval from PyPI against the running stack; the numbers against transformers alone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from clients.conftest import API_KEY
from clients.direct import DirectModel
from support.stack import Stack

DATA = Path(__file__).parent / "data"
#: The bound of a token's logprob.
TOLERANCE = 1e-4

#: How lm-eval sends prompts: ids or text, alone, as a list, or several requests at a time.
SENDINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "ids in batches": {"batch_size": 4},
    "ids at the same time": {"num_concurrent": 4},
    "text": {"tokenized_requests": False},
    "text in batches": {"tokenized_requests": False, "batch_size": 3},
    "the server's tokenizer": {"tokenizer": None, "tokenizer_backend": "auto"},
    "the server's tokenizer, text": {
        "tokenizer": None,
        "tokenizer_backend": "auto",
        "tokenized_requests": False,
    },
}

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " London, a city of lights"),
    ("1 2 3 4", " 5 6 7"),
    ("Emoji: ", "😀 is 中文 — naïve, 🏴‍☠️"),
    ("", "Hello world"),
    ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Hello!<|im_end|>\n"),
    ("tabs\tand\n\nlines ", "\n\n  kept   as they are"),
]

PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("The capital of France is", {"until": [".", "\n"], "max_gen_toks": 12}),
    (
        "Once upon a time",
        {"until": ["\n", "little girl named", "?", "!", "castle", "zebra"], "max_gen_toks": 24},
    ),
    ("1, 2, 3, 4,", {"until": [], "max_gen_toks": 16, "do_sample": False, "temperature": 0.0}),
    ("Emoji: 😀 😃", {"until": ["\n\n"], "max_gen_toks": 16}),
]

CHATS = [
    ([{"role": "user", "content": "What is the capital of France?"}], PROMPTS[0][1]),
    (
        [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": "Count to ten."},
        ],
        {"until": ["6"], "max_gen_toks": 24},
    ),
]


@pytest.fixture(params=SENDINGS)
def completions(request: pytest.FixtureRequest, stack: Stack, model_dir: Path) -> Any:
    """The client as `--model local-completions` makes it."""
    arguments = {
        "model": "smollm2",
        "base_url": f"{stack.gateway}/v1/completions",
        "tokenizer": str(model_dir),
        "tokenizer_backend": "huggingface",
        "auth_token": API_KEY,
        "max_retries": 1,
    }
    return LocalCompletionsAPI(**{**arguments, **SENDINGS[request.param]})


def instances(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [
        Instance(request_type=kind, doc={}, arguments=each, idx=index)
        for index, each in enumerate(arguments)
    ]


def direct_loglikelihood(
    direct: DirectModel, ids: list[int], context_len: int
) -> tuple[float, bool, float]:
    """Sum of the logprobs after the context, whether each was the best, and the sum's tolerance."""
    scores = direct.scores(ids)
    own, best = scores.own[context_len - 1 :], scores.best[context_len - 1 :]
    return sum(own), own == best, TOLERANCE * len(own)


def direct_text(direct: DirectModel, tokenizer: Any, ids: list[int], settings: Any) -> str:
    """Greedy text, cut at the first of the stop strings."""
    made = direct.greedy(ids, settings["max_gen_toks"])
    text: str = tokenizer.decode(made, skip_special_tokens=True)
    cuts = [text.index(stop) for stop in settings["until"] if stop in text]
    return text[: min(cuts, default=len(text))]


def encode_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], int]:
    """Ids and length of the context: of the whole text, as lm-eval documents it."""
    stripped = context.rstrip(" ") if context.endswith(" ") else context.rstrip()
    ids: list[int] = tokenizer(context + continuation, add_special_tokens=False).input_ids
    if not context:
        return [tokenizer.bos_token_id, *ids], 1
    return ids, len(tokenizer(stripped, add_special_tokens=False).input_ids)


def test_loglikelihood_equals_the_direct_computation(
    completions: Any, direct: DirectModel, tokenizer: Any
) -> None:
    answers = completions.loglikelihood(instances("loglikelihood", PAIRS), disable_tqdm=True)
    assert len(answers) == len(PAIRS)
    for pair, (logprob, is_greedy) in zip(PAIRS, answers, strict=True):
        expected, is_best, tolerance = direct_loglikelihood(direct, *encode_pair(tokenizer, *pair))
        assert logprob == pytest.approx(expected, abs=tolerance), pair
        assert is_greedy == is_best, pair
    assert {is_greedy for _, is_greedy in answers} == {True, False}


def test_rolling_loglikelihood_equals_the_direct_computation(
    completions: Any, direct: DirectModel, tokenizer: Any
) -> None:
    texts = [context + continuation for context, continuation in PAIRS[:4]]
    requests = instances("loglikelihood_rolling", [(text,) for text in texts])
    answers = completions.loglikelihood_rolling(requests, disable_tqdm=True)
    for text, logprob in zip(texts, answers, strict=True):
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]
        expected, _, tolerance = direct_loglikelihood(direct, ids, 1)
        assert logprob == pytest.approx(expected, abs=tolerance), text


def test_generate_until_equals_greedy_decoding_up_to_the_stop(
    completions: Any, direct: DirectModel, tokenizer: Any
) -> None:
    answers = completions.generate_until(instances("generate_until", PROMPTS), disable_tqdm=True)
    for (prompt, settings), text in zip(PROMPTS, answers, strict=True):
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        assert text == direct_text(direct, tokenizer, ids, settings), prompt
    assert all(answers)


def test_sampling_repeats_with_the_seed_that_lm_eval_sends(completions: Any) -> None:
    settings = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.2}
    request = instances("generate_until", [("Once upon a time", settings)])
    first = completions.generate_until(request, disable_tqdm=True)
    assert completions.generate_until(request, disable_tqdm=True) == first


@pytest.mark.parametrize("num_concurrent", [1, 3])
def test_chat_equals_greedy_decoding_of_the_rendered_chat(
    stack: Stack, direct: DirectModel, tokenizer: Any, num_concurrent: int
) -> None:
    client = LocalChatCompletion(
        model="smollm2",
        base_url=f"{stack.gateway}/v1/chat/completions",
        num_concurrent=num_concurrent,
        max_retries=1,
    )
    asked = [(client.apply_chat_template(messages), settings) for messages, settings in CHATS]
    answers = client.generate_until(instances("generate_until", asked), disable_tqdm=True)
    for (messages, settings), text in zip(CHATS, answers, strict=True):
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(rendered, add_special_tokens=False).input_ids
        assert text == direct_text(direct, tokenizer, ids, settings)


def test_command_evaluates_a_local_task(
    stack: Stack, direct: DirectModel, tokenizer: Any, model_dir: Path, tmp_path: Path
) -> None:
    samples = run_command(
        tmp_path,
        "--model=local-completions",
        "--model_args",
        f"model=smollm2,base_url={stack.gateway}/v1/completions,"
        f"tokenizer={model_dir},tokenizer_backend=huggingface",
        "--tasks=capitals,capitals_generate,capitals_rolling",
    )
    assert {name: len(found) for name, found in samples.items()} == {
        "capitals": 6,
        "capitals_generate": 6,
        "capitals_rolling": 6,
    }
    for sample in samples["capitals"]:
        check_choices(sample, direct, tokenizer)
    for sample in samples["capitals_generate"]:
        prompt, settings = sample["arguments"]["gen_args_0"].values()
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        text = direct_text(direct, tokenizer, ids, settings)
        assert sample["resps"] == [[text]]
        assert sample["exact_match"] == float(text.strip().lower() == sample["target"].lower())


def check_choices(sample: dict[str, Any], direct: DirectModel, tokenizer: Any) -> None:
    """Each choice's logprob and greediness are the direct ones, and so is the accuracy."""
    logprobs = []
    for pair, ((logprob, is_greedy),) in zip(
        sample["arguments"].values(), sample["resps"], strict=True
    ):
        ids = encode_pair(tokenizer, *pair.values())
        expected, is_best, tolerance = direct_loglikelihood(direct, *ids)
        assert float(logprob) == pytest.approx(expected, abs=tolerance)
        assert is_greedy == str(is_best)
        logprobs.append(expected)
    is_right = logprobs.index(max(logprobs)) == sample["doc"]["answer"]
    assert sample["acc"] == float(is_right)


def test_command_evaluates_a_local_task_by_chat(
    stack: Stack, direct: DirectModel, tokenizer: Any, tmp_path: Path
) -> None:
    samples = run_command(
        tmp_path,
        "--model=local-chat-completions",
        "--model_args",
        f"model=smollm2,base_url={stack.gateway}/v1/chat/completions",
        "--tasks=capitals_generate",
        "--apply_chat_template",
        "--limit=3",
    )
    assert len(samples["capitals_generate"]) == 3
    for sample in samples["capitals_generate"]:
        prompt, settings = sample["arguments"]["gen_args_0"].values()
        (messages,) = [json.loads(each) for each in prompt]
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(rendered, add_special_tokens=False).input_ids
        settings = {**settings, "until": settings["until"][:4]}  # lm-eval sends no more to chat
        assert sample["resps"] == [[direct_text(direct, tokenizer, ids, settings)]]


def run_command(tmp_path: Path, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    """Run the `lm-eval` command on our tasks; its logged samples by task."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("lm-eval")),
            "run",
            *arguments,
            "--include_path=.",
            f"--output_path={tmp_path}",
            "--log_samples",
        ],
        check=False,
        cwd=DATA,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return {
        path.name.removeprefix("samples_").rpartition("_")[0]: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in tmp_path.rglob("samples_*.jsonl")
    }
