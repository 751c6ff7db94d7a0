"""`triptych chat` as it is run: in a terminal, and through pipes."""

import re
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest

from support.canned_server import canned_server, refusal
from support.stack import Stack
from support.terminal import terminal
from triptych.client import Client

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

COLOUR = re.compile(r"\x1b\[38;5;\d+m(.*?)\x1b\[0m", re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def command(url: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "triptych_cli", "chat", f"--url={url}", *flags]


def piped(question: str, url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(url, *flags),
        input=question,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(stack: Stack, *texts: str, **fields: Any) -> str:
    """What the model says last in a greedy talk, whose messages begin with the user's."""
    roles = ["user", "assistant"] * len(texts)
    messages: Any = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    with Client(stack.gateway) as client:
        return client.chat(messages, temperature=0, **fields).text


def test_talk_in_a_terminal_has_several_turns_and_a_reset(stack: Stack) -> None:
    flags = ("--temperature=0", "--max-tokens=12")
    first = answer(stack, "Say hi.", max_tokens=12)
    second = answer(stack, "Say hi.", first, "Again.", max_tokens=12)
    alone = answer(stack, "Again.", max_tokens=12)
    assert len({first, second, alone}) == 3
    with terminal(command(stack.gateway, *flags)) as screen:
        assert "smollm2" in screen.until("\n> ")
        screen.type("Say hi.\n")
        assert f"\n{first}\n" in screen.until("\n> ")
        screen.type("Again.\n")
        assert f"\n{second}\n" in screen.until("\n> ")
        screen.type("/reset\n")
        screen.until("\n> ")
        screen.type("Again.\n")
        assert f"\n{alone}\n" in screen.until("\n> ")
        screen.type("/nonsense\n")
        assert "/help" in screen.until("\n> ")
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_probabilities_colour_the_tokens_and_candidates_are_listed(stack: Stack) -> None:
    text = answer(stack, "Say hi.", max_tokens=8)
    flags = ("--temperature=0", "--max-tokens=8", "--show-probs", "--top-k=3")
    with terminal(command(stack.gateway, *flags)) as screen:
        assert "probability" in screen.until("\n> ")
        screen.type("Say hi.\n")
        shown = screen.until("\n> ")
        assert "".join(COLOUR.findall(shown)) == text
        plain = ANSI.sub("", shown)
        assert "8 tokens, mean logprob" in plain
        lines = re.findall(r"^ *[<\d.]+%  \S.*$", plain, re.MULTILINE)
        assert len(lines) == 8
        assert all(len(re.findall(r"[<\d.]+%", line)) in {3, 4} for line in lines)
        screen.type("/top 2\n")
        assert len(re.findall(r"^ *[<\d.]+%", screen.until("\n> "), re.MULTILINE)) == 8
        screen.type("\x04")
        assert screen.wait() == 0


def test_no_color_shows_percentages_instead(stack: Stack) -> None:
    text = answer(stack, "Say hi.", max_tokens=6)
    flags = ("--temperature=0", "--max-tokens=6", "--show-probs")
    with terminal(command(stack.gateway, *flags), NO_COLOR="1") as screen:
        screen.until("\n> ")
        screen.type("Say hi.\n")
        shown = screen.until("\n> ")
        assert "\x1b[" not in shown.replace("\x1b[?2004", "")  # bracketed paste is readline's own
        marked = next(line for line in shown.splitlines() if line.startswith(text[:3]))
        assert re.sub(r"\[\d+\]", "", marked) == text
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_interrupt_ends_the_answer_and_not_the_talk(stack: Stack) -> None:
    with terminal(command(stack.gateway, "--temperature=0")) as screen:
        screen.until("\n> ")
        screen.type("Write a very long story about the sea.\n")
        screen.until("\n")
        screen.until(" ")  # the answer has begun
        screen.type("\x03")
        assert "(stopped" in screen.until("\n> ")
        screen.type("\x03")
        assert "leaves" in screen.until("> ")
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_question_through_a_pipe_is_answered_with_nothing_else(stack: Stack) -> None:
    text = answer(stack, "Say hi.", max_tokens=10)
    done = piped("Say hi.\n", stack.gateway, "--temperature=0", "--max-tokens=10")
    assert (done.stdout, done.stderr, done.returncode) == (f"{text}\n", "", 0)


def test_interrupt_ends_a_piped_answer_with_its_status(stack: Stack) -> None:
    with subprocess.Popen(
        command(stack.gateway, "--max-tokens=4000"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Write a very long story about the sea.")
        process.stdin.close()
        process.stdout.read(1)  # the answer has begun
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_what_is_no_text_is_refused() -> None:
    done = subprocess.run(
        command("http://127.0.0.1:1"), input=b"a\xff", check=False, capture_output=True, timeout=60
    )
    assert (done.stdout, done.returncode) == (b"", 1)
    assert done.stderr == b"triptych chat: standard input is not UTF-8 at byte 1\n"


def test_probabilities_through_a_pipe_stand_behind_the_tokens(stack: Stack) -> None:
    text = answer(stack, "Say hi.", max_tokens=6)
    flags = ("--temperature=0", "--max-tokens=6", "--show-probs")
    done = piped("Say hi.", stack.gateway, *flags)
    assert re.sub(r"\[\d+\]", "", done.stdout) == f"{text}\n"
    assert len(re.findall(r"\[\d+\]", done.stdout)) == 6


def test_failures_are_one_line(stack: Stack) -> None:
    for done, message in (
        (piped("", stack.gateway), "standard input has no question"),
        (piped("Hi", stack.gateway, "--max-tokens=99999"), "max_tokens"),
        (piped("Hi", "http://127.0.0.1:1"), "http://127.0.0.1:1 is not reachable"),
    ):
        assert (done.stdout.strip(), done.returncode) == ("", 1)
        assert done.stderr.startswith("triptych chat: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_input_that_the_caller_closed_is_empty() -> None:
    script = f"exec {shlex.quote(sys.executable)} -m triptych_cli chat <&-"
    done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "triptych chat: standard input has no question\n"


def test_failed_answer_does_not_end_the_talk() -> None:
    models = b'{"data": [{"id": "m"}]}'
    head = b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n"
    answers = [head + models, refusal(500), refusal(400)]
    with canned_server(answers) as server, terminal(command(server.url)) as screen:
        screen.until("\n> ")
        for status in (500, 400):
            screen.type("Hi\n")
            assert f"triptych chat: refused with {status}" in screen.until("\n> ")
        screen.type("/quit\n")
        assert screen.wait() == 0
    assert server.requests[2][2]["messages"] == [{"role": "user", "content": "Hi"}]
