"""`triptych score` as it is run, against the running stack."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.stack import Stack
from support.terminal import terminal
from triptych.client import Client

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

TEXTS = [f"Line {number} of a file: {'word ' * (number % 5)}end." for number in range(12)]


def command(stack: Stack, *args: str) -> list[str]:
    return [sys.executable, "-m", "triptych_cli", "score", f"--url={stack.gateway}", *args]


def score(stack: Stack, *args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(stack, *args), input=given, check=False, capture_output=True, text=True, timeout=60
    )


def parsed(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)))
    return path


def test_lines_have_the_clients_scores_in_order(stack: Stack, texts: Path) -> None:
    done = score(stack, str(texts), "--tokens")
    assert done.returncode == 0
    with Client(stack.gateway) as client:
        wanted = client.score_batch(TEXTS)
    for number, (line, one) in enumerate(zip(parsed(done.stdout), wanted, strict=True)):
        assert (line["id"], line["text"]) == (number, TEXTS[number])
        assert (line["logprob"], line["perplexity"]) == (one.logprob, one.perplexity)
        assert (line["num_tokens"], line["num_scored"]) == (len(one.tokens), len(one.tokens) - 1)
        for shown, token in zip(line["tokens"], one.tokens, strict=True):
            assert shown == {
                "token": token.token,
                "token_id": token.token_id,
                "logprob": token.logprob,
                "rank": token.rank,
            }
    num_tokens = sum(len(one.tokens) for one in wanted)
    assert done.stderr.startswith(f"lines 12, tokens {num_tokens}, scored {num_tokens - 12}; ")
    (total,) = re.findall(r"logprob (\S+),", done.stderr)
    assert float(total) == pytest.approx(sum(one.logprob for one in wanted), rel=1e-4)


def test_plain_lines_of_a_pipe_come_out_as_json(stack: Stack) -> None:
    done = score(stack, "-", given="The capital of France is Paris.\n\n世界 🙂\n")
    assert [line["text"] for line in parsed(done.stdout)] == [
        "The capital of France is Paris.",
        "世界 🙂",
    ]


def test_refused_lines_are_named_and_the_others_scored(stack: Stack, tmp_path: Path) -> None:
    lines = ['{"text": "one two"}', "no json", '{"text": ""}', '{"text": [5, 99999999]}']
    lines += ['{"text": "three four"}']
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(lines))
    done = score(stack, str(path))
    first, *refused, last = parsed(done.stdout)
    assert (first["text"], last["text"]) == ("one two", "three four")
    starts = [line["error"]["message"].partition(":")[0] for line in refused]
    assert starts == ["line 2", "line 3", "line 4"]
    assert done.returncode == 1
    assert "triptych score: refused 3 of 5 lines, the first: line 2: not JSON" in done.stderr


@pytest.mark.parametrize("num_bytes", [0, 1, 700, 1024])
def test_cut_output_is_gone_on_with(
    stack: Stack, texts: Path, tmp_path: Path, num_bytes: int
) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    summary = score(stack, str(texts), f"--output={whole}").stderr
    cut.write_bytes(whole.read_bytes()[:num_bytes])
    again = score(stack, str(texts), f"--output={cut}", "--resume")
    assert cut.read_bytes() == whole.read_bytes()
    assert again.stderr.rpartition(";")[0] == summary.rpartition(";")[0]


def test_interrupted_run_leaves_whole_lines_and_goes_on(
    stack: Stack, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    read_fd, write_fd = os.pipe()
    lines = texts.read_bytes().splitlines(keepends=True)
    os.write(write_fd, b"".join(lines[:3]))
    with subprocess.Popen(
        command(stack, "-", f"--output={output}"), stdin=read_fd, stderr=subprocess.PIPE
    ) as process:
        while not output.exists() or output.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)  # while it waits for the fourth
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(read_fd)
    os.close(write_fd)
    assert score(stack, str(texts), f"--output={output}", "--resume").returncode == 0
    assert [line["id"] for line in parsed(output.read_text())] == list(range(12))


def test_terminal_shows_progress(stack: Stack, texts: Path, tmp_path: Path) -> None:
    args = command(stack, str(texts), f"--output={tmp_path / 'out.jsonl'}")
    with terminal(args) as screen:
        screen.until("/12 ")
        screen.until("perplexity")
        assert screen.wait() == 0
    assert "lines 12," in screen.shown


def test_output_may_be_no_file(stack: Stack, texts: Path) -> None:
    done = score(stack, str(texts), f"--output={os.devnull}")
    assert (done.stdout, done.returncode) == ("", 0)
    assert done.stderr.startswith("lines 12, ")


def test_a_named_pipe_is_read_once(stack: Stack, texts: Path, tmp_path: Path) -> None:
    args = command(stack, "/dev/fd/0", f"--output={tmp_path / 'out.jsonl'}")
    with terminal(["sh", "-c", f'cat {texts} | "$@"', "sh", *args]) as screen:
        assert screen.wait() == 0
    assert "lines 12," in screen.shown


def test_faults_are_one_line(stack: Stack, texts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("no score\n")
    for args, message in (
        ((str(tmp_path / "none"),), "No such file"),
        ((str(texts), "--resume"), "--resume needs --output"),
        ((str(texts), f"--output={texts}"), "are the same file"),
        ((str(texts), f"--output={other}", "--resume"), "line 1: no score"),
        ((str(texts), "--url=http://127.0.0.1:1"), "stopped at line 1: http://127.0.0.1:1 is not"),
    ):
        done = score(stack, *args)
        assert (done.stdout, done.returncode) == ("", 1)
        assert done.stderr.startswith("triptych score: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert len(parsed(texts.read_text())) == 12
