"""anyjev from PyPI against the running stack; its probabilities against transformers alone."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyjev import Decider, Question, Tacit
from anyjev.backends.vllm import VLLMBackend
from anyjev.tacit import ServerEngine

from clients.conftest import API_KEY
from clients.direct import DirectModel
from support.stack import Stack

TOLERANCE = 1e-4
LETTERS = string.ascii_uppercase

ITEMS: list[dict[str, Any]] = [
    {
        "state": "My package was due last Monday and has not arrived.",
        "question": "What does the customer want?",
        "options": ["track the order", "a refund", "another address"],
    },
    {"state": "It has rained since noon.", "question": "Is the street wet?", "kind": "yes_no"},
    {
        "state": "It has rained since noon.",
        "question": "How wet is the street?",
        "options": ["dry", "damp", "soaked"],
        "kind": "score",
    },
    {
        "state": "The answer is the last one.",
        "question": "Which one?",
        "options": [f"option {number}" for number in range(26)],
    },
]


class DirectBackend:
    """anyjev's backend interface over the direct computation."""

    name = "direct"

    def __init__(self, direct: DirectModel, tokenizer: Any) -> None:
        self._direct = direct
        self.tokenizer = tokenizer

    def next_token_logprobs(
        self, prompts: Sequence[str], token_ids: Sequence[Sequence[int]]
    ) -> list[Any]:
        return [
            np.array(self._direct.scores(self._ids(prompt), picks).picks)
            for prompt, picks in zip(prompts, token_ids, strict=True)
        ]

    def _ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False).input_ids
        return ids


@pytest.fixture
def backend(stack: Stack, model_dir: Path) -> Any:
    """One text prompt a request, restricted to the labels: `allowed_token_ids`."""
    return VLLMBackend(stack.gateway, "smollm2", str(model_dir), api_key=API_KEY)


def letter_ids(tokenizer: Any) -> list[int]:
    return [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in LETTERS]


@pytest.mark.parametrize("path", ["", "/v1"])
def test_server_engine_reads_the_labels_among_the_twenty_best(
    stack: Stack, direct: DirectModel, tokenizer: Any, path: str
) -> None:
    engine = ServerEngine(stack.gateway + path, "smollm2", tokenizer, api_key=API_KEY)
    texts = ["The next letter is", "A, B, C, D, E,", "Answer with one letter:\n", "Emoji 😀:"]
    labels = letter_ids(tokenizer)
    answers = engine.read(texts, [labels] * len(texts))
    for text, answer in zip(texts, answers, strict=True):
        scores = direct.scores(tokenizer(text, add_special_tokens=False).input_ids, labels)
        is_read = np.isin(labels, scores.next_ids)
        assert (np.isfinite(answer) == is_read).all() or not is_read.any()
        if is_read.any():
            expected = np.array(scores.picks)[is_read]
            expected -= np.log(np.exp(expected).sum())
            assert answer[is_read] == pytest.approx(expected, abs=TOLERANCE)


def test_tacit_decides_a_batch_as_it_decides_one_by_one(stack: Stack, model_dir: Path) -> None:
    tacit = Tacit.from_pretrained(
        str(model_dir),
        engine="server",
        base_url=stack.gateway,
        served_model="smollm2",
        api_key=API_KEY,
    )
    batch = tacit.decide_batch(ITEMS * 3)
    alone = [tacit.decide_batch([item])[0] for item in ITEMS]
    assert batch == alone * 3  # the engine's promise: the same bits in any batch
    assert {answer["route"] for answer in batch} == {"one_forward"}
    for answer in batch:
        assert sum(answer["probs"].values()) == pytest.approx(1)


def test_tacit_escalates_to_reasoning_that_ends_at_its_stop_string(
    stack: Stack, model_dir: Path
) -> None:
    tacit = Tacit.from_pretrained(
        str(model_dir),
        engine="server",
        base_url=stack.gateway,
        served_model="smollm2",
        api_key=API_KEY,
        adaptive=True,
        tau=1e9,
        max_cot_share=None,
        cot_max_tokens=12,
    )
    for answer in tacit.decide_batch(ITEMS[:3]):
        assert answer["route"] == "cot"
        assert sum(answer["probs"].values()) == pytest.approx(1)


def test_label_request_has_all_labels_with_their_full_vocabulary_values(
    backend: Any, direct: DirectModel, tokenizer: Any
) -> None:
    labels = letter_ids(tokenizer)
    prompts = ["The next letter is", "A, B, C, D, E,", "State: all is well.\nAnswer:"] * 8
    picks = [labels, labels[:2], labels[::-1]] * 8
    answers = backend.next_token_logprobs(prompts, picks)
    expected = DirectBackend(direct, tokenizer).next_token_logprobs(prompts, picks)
    for answer, scores in zip(answers, expected, strict=True):
        assert answer == pytest.approx(scores, abs=TOLERANCE)  # a lost label would read -30


@pytest.mark.parametrize("level", ["raw", "L0"])
def test_decider_decides_as_over_the_direct_computation(
    backend: Any, direct: DirectModel, tokenizer: Any, level: str
) -> None:
    question = Question.choice("How is the weather?", ["wet", "dry", "windy", "cold"])
    states = ["It rains.", "The sun shines.", "A storm comes up.", "Snow lies on the roof."] * 2
    served = Decider(backend, level=level).decide_batch(states, question)
    expected = Decider(DirectBackend(direct, tokenizer), level=level).decide_batch(states, question)
    for answer, reference in zip(served, expected, strict=True):
        assert answer.level == reference.level == level
        assert answer.probs == pytest.approx(reference.probs, abs=TOLERANCE)


def test_decider_reads_twenty_six_options(
    backend: Any, direct: DirectModel, tokenizer: Any
) -> None:
    question = Question.choice("Which letter comes first?", list(LETTERS))
    (answer,) = Decider(backend, level="raw").decide_batch(["An alphabet."], question)
    reference = Decider(DirectBackend(direct, tokenizer), level="raw")
    (expected,) = reference.decide_batch(["An alphabet."], question)
    assert len(answer.probs) == 26
    assert answer.probs == pytest.approx(expected.probs, abs=TOLERANCE)
    assert (answer.probs > 0).all()
