"""render and derender on files and pipes: the bodies of their endpoints, a line each."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.net import http_client
from support.stack import Stack
from triptych.errors import SetupError
from triptych.lines import LineSettings, answer_lines, numbered_lines
from triptych_derender.derenderer import Derenderer
from triptych_derender.http import create_derender_app
from triptych_derender.lines import derender_line
from triptych_render.http import create_render_app
from triptych_render.lines import render_line
from triptych_render.renderer import Renderer

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

CHAT = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
REQUESTS: list[tuple[str, Any]] = [
    ("chat/completions", CHAT),
    ("chat/completions", {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}),
    ("completions", {"prompt": "Once", "max_tokens": 3, "n": 2}),
    ("completions", {"prompt": ["Once", "Twice"], "max_tokens": 3}),
    ("chat/completions", {"messages": []}),
    ("chat/completions", {**CHAT, "model": "another"}),
    ("chat/completions", {"max_tokens": 4}),
    ("completions", {"prompt": "Once", "max_tokens": -1}),
    ("chat/completions", ["no object"]),
    ("chat/completions", None),
]
GENERATED = {
    "request_id": "r",
    "model": "smollm2",
    "created": 1,
    "choices": [{"index": 0, "token_ids": [28120], "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
ANSWERS: list[tuple[str, Any]] = [
    ("chat/completions", {"generate_response": GENERATED, "chat_request": CHAT}),
    ("completions", {"generate_response": GENERATED, "completion_request": {"prompt": "Once"}}),
    ("completions", {"generate_responses": [GENERATED, GENERATED]}),
    ("chat/completions", {"generate_response": GENERATED}),
    ("chat/completions", {"stream": True, "generate_chunk": GENERATED, "prompt_tokens": 5}),
    ("chat/completions", {"generate_response": {**GENERATED, "choices": []}}),
    ("chat/completions", {"generate_response": {"choices": 3}}),
    ("chat/completions", {}),
    ("chat/completions", "no object"),
]


def on_lines(tmp_path: Path, answer: Any, text: bytes, *, limit: int = 2**20) -> list[Any]:
    """What the lines of ``text`` give; whether some are refused is not looked at."""
    (tmp_path / "in").write_bytes(text)
    settings = LineSettings(input=str(tmp_path / "in"), output=str(tmp_path / "out"))
    with contextlib.suppress(SetupError):
        answer_lines(answer, settings, max_line_bytes=limit)
    return [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]


def without_names(value: Any) -> Any:
    """``value`` without request ids, which are random, and times."""
    if isinstance(value, list):
        return [without_names(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_names(each)
        for name, each in value.items()
        if name not in {"request_id", "id", "created"}
    }


async def assert_lines_are_bodies(
    client: httpx.AsyncClient, verb: str, cases: list[tuple[str, Any]], lines: list[Any]
) -> None:
    assert len(lines) == len(cases)
    for number, ((endpoint, body), line) in enumerate(zip(cases, lines, strict=True), start=1):
        answer = (await client.post(f"/v1/{endpoint}/{verb}", content=json.dumps(body))).json()
        if "error" in answer:
            answer["error"]["message"] = f"line {number}: {answer['error']['message']}"
        assert without_names(line) == without_names(answer)


async def test_render_lines_are_the_bodies_of_its_endpoints(
    smollm2_dir: Path, tmp_path: Path
) -> None:
    renderer = Renderer.from_directory(smollm2_dir, model="smollm2")
    text = "\n".join(json.dumps(body) for _, body in REQUESTS)
    lines = on_lines(tmp_path, lambda line: render_line(renderer, line), text.encode())
    async with http_client(create_render_app(renderer, max_body_bytes=2**20)) as client:
        await assert_lines_are_bodies(client, "render", REQUESTS, lines)


async def test_derender_lines_are_the_bodies_of_its_endpoints(
    smollm2_dir: Path, tmp_path: Path
) -> None:
    derenderer = Derenderer.from_directory(smollm2_dir, model="smollm2")
    text = "\n".join(json.dumps(body) for _, body in ANSWERS)
    lines = on_lines(tmp_path, lambda line: derender_line(derenderer, line), text.encode())
    async with http_client(create_derender_app(derenderer, max_body_bytes=2**20)) as client:
        await assert_lines_are_bodies(client, "derender", ANSWERS, lines)


def test_derender_takes_an_answer_of_generate_as_it_is(smollm2_dir: Path, tmp_path: Path) -> None:
    derenderer = Derenderer.from_directory(smollm2_dir, model="smollm2")
    bare = json.dumps(GENERATED) + "\n" + json.dumps({"generate_response": GENERATED})
    lines = on_lines(tmp_path, lambda line: derender_line(derenderer, line), bare.encode())
    assert without_names(lines[0]) == without_names(lines[1])
    assert lines[0]["object"] == "chat.completion"


@given(
    text=st.lists(st.sampled_from([b"", b"a", b"abcd", b"abcde", b"x" * 23, b"  "])).map(
        b"\n".join
    ),
    ends=st.sampled_from([b"", b"\n", b"\r\n"]),
    limit=st.integers(1, 6),
)
def test_lines_are_numbered_and_bounded(text: bytes, ends: bytes, limit: int) -> None:
    read = list(numbered_lines(io.BytesIO(text + ends), limit))
    expected = [
        (number, line)
        for number, line in enumerate((text + ends).replace(b"\r", b"").split(b"\n"), start=1)
        if line.strip()
    ]
    assert [number for number, _ in read] == [number for number, _ in expected]
    for (_, line), (_, whole) in zip(read, expected, strict=True):
        assert line == whole if len(whole) <= limit else len(line) == limit + 1


def test_a_line_over_the_limit_is_refused_alone(tmp_path: Path) -> None:
    text = b"a\n" + b"b" * 10 + b"\n\nc\n"
    lines = on_lines(tmp_path, lambda line: b'"%b"' % line, text, limit=4)
    assert (lines[0], lines[2]) == ("a", "c")
    assert lines[1]["error"]["message"] == "line 2: it has more than 4 bytes"


def command(verb: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "triptych_cli", verb, "--model=smollm2", *flags]


def run(
    verb: str, *flags: str, text: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(verb, *flags),
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_pipe_answers_line_by_line_and_ends_quietly() -> None:
    with subprocess.Popen(
        command("render", "--input=-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):  # each answer comes before the next question is asked
            process.stdin.write(json.dumps(CHAT).encode() + b"\n")
            assert json.loads(process.stdout.readline())["model"] == "smollm2"
        process.stdout.close()
        process.stdin.write(json.dumps(CHAT).encode() + b"\n")
        process.stdin.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


def test_refused_lines_are_counted_at_the_end(tmp_path: Path) -> None:
    text = "\n".join([json.dumps(CHAT), "{", json.dumps(CHAT), "[]"])
    done = run("render", "--input=-", "--output=out.jsonl", text=text, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "triptych render: refused 2 of 4 lines, first line 2\n"
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [min(line) for line in lines] == ["cache_salt", "error", "cache_salt", "error"]
    assert lines[3]["error"]["message"].startswith("line 4: the body must be a JSON object")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["--input=in.jsonl", "--output=no/out"], "no/out: No such file or directory"),
        (["--input=in.jsonl", "--output=./in.jsonl"], "./in.jsonl is both --input and --output"),
    ],
)
def test_files_that_do_not_fit_are_one_line(flags: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    done = run("derender", *flags, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"triptych derender: {message}\n"
    assert (tmp_path / "in.jsonl").read_text() == "{}\n"


def test_render_generate_and_derender_compose(stack: Stack) -> None:
    """Two chats and two prompts through the pipes, against the gateway's own answers."""
    chats = [{**CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 2}]
    chats.append({**chats[0], "messages": [{"role": "user", "content": "Count."}]})
    rendered = run("render", "--input=-", text="\n".join(map(json.dumps, chats)))
    assert (rendered.returncode, rendered.stderr) == (0, "")
    bodies = []
    for chat, line in zip(chats, rendered.stdout.splitlines(), strict=True):
        answer = httpx.post(f"{stack.generate}/inference/v1/generate", content=line, timeout=60)
        bodies.append({"generate_response": answer.json(), "chat_request": chat})
    replies = run("derender", "--input=-", text="\n".join(map(json.dumps, bodies)))
    assert (replies.returncode, replies.stderr) == (0, "")
    for chat, line in zip(chats, replies.stdout.splitlines(), strict=True):
        whole = httpx.post(f"{stack.gateway}/v1/chat/completions", json=chat, timeout=60).json()
        assert without_names(json.loads(line)["choices"]) == without_names(whole["choices"])
