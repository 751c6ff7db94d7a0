"""The Python examples against the panels' other doors.

importance.py and compare.py are run by docs/rl.md, which says what they print.
"""

import base64
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.runs import PYTHON, output_tokens, python, read_frontend, run
from support.line import line_to
from support.replies import COMPLETIONS, generate, post, whole
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="session")
def pieces(stack: Stack) -> list[bytes]:
    """The bytes of every id, from derender's own table."""
    tokens = httpx.get(f"{stack.derender}/vocabulary").json()["tokens"]
    return [base64.b64decode(token) for token in tokens]


def frontend(stack: Stack, smollm2_dir: Path, *arguments: str) -> list[str | Path]:
    command: list[str | Path] = [sys.executable, "frontend.py", "--generate", stack.generate_grpc]
    return [*command, "--tokenizer", smollm2_dir / "tokenizer.json", *arguments]


@pytest.mark.parametrize("prompt", ["The capital of France is", "🙂 🙃 🙂 🙃 🙂"])
def test_frontend_shows_what_the_gateway_answers(
    stack: Stack, smollm2_dir: Path, pieces: list[bytes], prompt: str
) -> None:
    done = run(frontend(stack, smollm2_dir, prompt))
    lines, text, finish = read_frontend(done.stdout)
    asked: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": 16, "logprobs": 3}
    asked |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    (choice,) = whole(stack, COMPLETIONS, **asked)["choices"]
    assert [line.token_id for line in lines] == choice["token_ids"]
    assert (text, finish) == (choice["text"], "FINISH_REASON_LENGTH")
    for line, listed in zip(lines, choice["logprobs"]["top_logprobs"], strict=True):
        wanted = {pieces[int(key.removeprefix("token_id:"))]: p for key, p in listed.items()}
        assert [token for token, _ in line.candidates] == [*wanted]
        assert [p for _, p in line.candidates] == pytest.approx(
            [math.exp(logprob) for logprob in wanted.values()], abs=1e-4
        )
    assert b"".join(pieces[line.token_id] for line in lines).decode(errors="replace") == text


def test_frontend_cancels_at_a_stop_string(stack: Stack, smollm2_dir: Path) -> None:
    before = output_tokens(stack)
    done = run(frontend(stack, smollm2_dir, "--stop=6", "--max-tokens=4000", "1, 2, 3,"))
    lines, text, finish = read_frontend(done.stdout)
    assert (len(lines), text, finish) == (8, " 4, 5, ", "stop string")
    assert output_tokens(stack) - before < 100


def test_frontend_says_what_generate_refused(stack: Stack, smollm2_dir: Path) -> None:
    done = run(frontend(stack, smollm2_dir, ""))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "generate: INVALID_ARGUMENT: token_ids is empty; at least 1 is needed\n"


def test_score_prints_the_echoed_prompts_logprobs(stack: Stack, smollm2_dir: Path) -> None:
    text = "The capital of France is Paris. 🙂"
    *lines, last = python(
        "score.py",
        f"--generate={stack.generate_grpc}",
        f"--tokenizer={smollm2_dir / 'tokenizer.json'}",
        text,
    ).splitlines()
    asked = {"prompt": text, "echo": True, "max_tokens": 0, "logprobs": 0}
    (choice,) = whole(stack, COMPLETIONS, **asked)["choices"]
    _, *wanted = choice["logprobs"]["token_logprobs"]
    assert [float(line.split()[0]) for line in lines] == pytest.approx(wanted, abs=1e-5)
    assert float(last.split()[-1]) == pytest.approx(math.exp(-sum(wanted) / len(wanted)), abs=1e-3)


def test_resume_goes_on_to_the_bit_where_the_connection_broke(stack: Stack) -> None:
    prompt = [str(token_id) for token_id in PROMPT]
    unbroken = python("resume.py", f"--generate={stack.generate_grpc}", *prompt)
    with line_to(f"http://{stack.generate_grpc}") as line:
        address = line.address.removeprefix("http://")
        process = subprocess.Popen(
            [sys.executable, "resume.py", f"--generate={address}", *prompt],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PYTHON,
        )
        with process:
            assert process.stdout is not None
            begun = "".join(process.stdout.readline() for _ in range(3))
            line.cut()
            rest, complaints = process.communicate(timeout=60)
    assert begun + rest == unbroken
    assert re.fullmatch(r"UNAVAILABLE after \d+ tokens\n", complaints)


def test_decide_reads_every_labels_probability_at_one_position(stack: Stack) -> None:
    options = ["track the order", "a refund", *(f"something else {n}" for n in range(24))]
    state, question = "My package was due last Monday.", "What does the customer want?"
    output = python(
        "decide.py", f"--gateway={stack.gateway}", f"--question={question}", state, *options
    )
    rows = re.findall(r"^([A-Z]) +(\S+) +(\S+) +(\S+)  (.*)$", output, re.MULTILINE)
    assert [row[4] for row in rows] == options
    letters = [row[0] for row in rows]
    label_ids = [
        post(f"{stack.render}/tokenize", prompt=f" {each}")["tokens"][0] for each in letters
    ]
    listed = "\n".join(f"{each}. {option}" for each, option in zip(letters, options, strict=True))
    raw, leaning = (
        label_probabilities(stack, f"{text}\n\nQuestion: {question}\n{listed}\nAnswer:", label_ids)
        for text in (state, "N/A")
    )
    weights = [one / other for one, other in zip(raw, leaning, strict=True)]
    assert [float(row[1]) for row in rows] == pytest.approx(raw, abs=1e-6)
    assert [float(row[2]) for row in rows] == pytest.approx([p / sum(raw) for p in raw], abs=1e-4)
    calibrated = [weight / sum(weights) for weight in weights]
    assert [float(row[3]) for row in rows] == pytest.approx(calibrated, abs=1e-4)
    assert output.splitlines()[-1] == f"decision: none ({max(calibrated):.4f})"


def label_probabilities(stack: Stack, prompt: str, label_ids: list[int]) -> list[float]:
    """Of the next token, asked of generate alone, which samples freely."""
    token_ids = post(f"{stack.render}/tokenize", prompt=prompt)["tokens"]
    answer = generate(stack, token_ids, max_tokens=1, seed=1, logprob_token_ids=label_ids)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    found = {each["token_id"]: each["logprob"] for each in entry["top_logprobs"]}
    return [math.exp(found[label]) for label in label_ids]
