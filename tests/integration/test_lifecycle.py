"""Processes start, refuse to start, and stop as a person at a terminal expects."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.stack import Stack, running_stack, stop, wait_for

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("lifecycle")]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triptych_cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in listed.split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Reader(threading.Thread):
    """A client that streams one chat answer to its end."""

    def __init__(self, stack: Stack, **asked: Any) -> None:
        super().__init__(daemon=True)
        self.stack = stack
        messages = [{"role": "user", "content": "Count."}]
        # it does not end by chance before the test has acted
        self.body = {"messages": messages, "stream": True, "ignore_eos": True, **asked}
        self.begun = threading.Event()
        self.text = ""
        self.start()
        assert self.begun.wait(60)

    def run(self) -> None:
        url = f"{self.stack.gateway}/v1/chat/completions"
        with httpx.stream("POST", url, json=self.body, timeout=60) as answer:
            for part in answer.iter_text():
                self.text += part
                self.begun.set()

    def whole_text(self) -> str:
        """All that came, once the answer has ended."""
        self.join(200)
        assert not self.is_alive()
        return self.text


def test_ctrl_c_ends_every_process_while_an_answer_streams() -> None:
    with running_stack() as stack:
        reader = Reader(stack)
        (child,) = children(stack.process.pid)
        stop(stack.process)
        reader.join(60)
        assert not reader.is_alive()
        assert not is_running(child)
        assert stack.process.returncode == 0
        assert "Traceback" not in stack.log.read_text()


def test_sigterm_lets_a_running_answer_end_and_refuses_new_ones() -> None:
    with running_stack("--drain-timeout-s=600", log_level="info") as stack:
        reader = Reader(stack, max_tokens=120)
        (child,) = children(stack.process.pid)
        stack.process.send_signal(signal.SIGTERM)
        wait_for(stack.log, stack.process, "stopping")
        assert httpx.get(f"{stack.gateway}/ready", timeout=60).status_code == 503
        assert httpx.get(f"{stack.gateway}/health", timeout=60).status_code == 200
        body = {"messages": [{"role": "user", "content": "Count."}]}
        refused = httpx.post(f"{stack.gateway}/v1/chat/completions", json=body, timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        for panel in (stack.render, stack.derender):
            assert httpx.get(f"{panel}/ready", timeout=60).status_code == 503
        text = reader.whole_text()
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in text
        assert stack.process.wait(120) == 0
        assert not is_running(child)


def test_killed_generate_ends_a_stream_with_an_error_and_serve_with_a_message() -> None:
    with running_stack() as stack:
        reader = Reader(stack)
        (child,) = children(stack.process.pid)
        os.kill(child, signal.SIGKILL)
        assert stack.process.wait(60) == 1
        assert "generate ended with status -9" in stack.log.read_text()
        *_, end = reader.whole_text().strip().split("\n\n")
        assert end.startswith("event: error\n")
        assert '"code":"unavailable"' in end


def test_generate_ends_with_its_parent() -> None:
    with running_stack() as stack:
        (child,) = children(stack.process.pid)
        stack.process.kill()
        stack.process.wait()
        deadline = time.monotonic() + 60
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_running(child)


def test_serve_on_an_ipv6_address_reaches_its_generate() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with running_stack("--host=::1", "--generate-grpc-port=0") as stack:
        url = stack.gateway.replace("127.0.0.1", "[::1]")
        asked = {"prompt": "One", "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=asked, timeout=60).status_code == 200


@pytest.mark.parametrize("flag", ["--http-port", "--derender-grpc-port"])
def test_port_in_use_is_one_line(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        others = ["--http-port=0", "--render-http-port=0", "--generate-http-port=0"]
        others += ["--derender-http-port=0", "--render-grpc-port=0", "--generate-grpc-port=0"]
        done = run("serve", "--threads=1", *others, "--derender-grpc-port=0", f"{flag}={port}")
    assert done.returncode == 1
    assert f":{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "render", "derender", "generate"])
def test_missing_model_is_one_line(command: str) -> None:
    done = run(command, "--model", "/nonexistent/model")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"triptych {command}: there is no model at /nonexistent/model\n"


@pytest.mark.parametrize(
    ("command", "lacks"), [("render", "tokenizer.json"), ("generate", "config.json")]
)
def test_model_directory_that_lacks_files_is_one_line(
    command: str, lacks: str, tmp_path: Path
) -> None:
    done = run(command, "--model", str(tmp_path))
    assert done.returncode == 1
    assert lacks in done.stderr
    assert done.stderr.count("\n") == 1


def test_directory_without_weights_is_one_line(smollm2_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((smollm2_dir / "config.json").read_bytes())
    done = run("generate", "--model", str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "triptych generate:" in done.stderr


def test_bad_flag_value_names_flag_and_value() -> None:
    done = run("gateway", "--http-port", "99999")
    assert done.returncode == 1
    assert "--http-port" in done.stderr
    assert "99999" in done.stderr
