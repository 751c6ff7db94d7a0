"""bench against servers on real sockets: a scripted one that fails in every way, and the stack."""

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.stack import Stack
from triptych_cli.bench.answers import Answer
from triptych_cli.bench.bodies import bodies
from triptych_cli.bench.connection import Address, Connections
from triptych_cli.bench.load import Asker, run_level
from triptych_cli.bench.settings import BenchSettings, Level

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
END = b"data: [DONE]\n\n"

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


def part(data: bytes) -> bytes:
    """A chunk of HTTP's chunked transfer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer_well(writer: asyncio.StreamWriter) -> None:
    for data in (HEAD, part(EVENT), part(EVENT + END), b"0\r\n\r\n"):
        writer.write(data)
        await writer.drain()


async def refuse(writer: asyncio.StreamWriter) -> None:
    body = b'{"error": {"message": "full", "code": "overloaded"}}'
    writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + part(EVENT))
    await writer.drain()
    writer.transport.abort()


async def end_early(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + part(EVENT) + b"0\r\n\r\n")


async def fail_inside(writer: asyncio.StreamWriter) -> None:
    error = b'event: error\ndata: {"error": {"code": "unavailable"}}\n\n'
    writer.write(HEAD + part(EVENT) + part(error) + b"0\r\n\r\n")


async def say_nothing(writer: asyncio.StreamWriter) -> None:
    del writer


async def speak_otherwise(writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")


class Server:
    """Answers requests by ``scripts``, one after the other; notes what came, how many at once."""

    def __init__(self, scripts: list[Script]) -> None:
        self._scripts = itertools.cycle(scripts)
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.at_once = 0
        self.most_at_once = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                await next(self._scripts)(writer)
                self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def asking(
    *scripts: Script, timeout_s: float = 20, key: str | None = None
) -> AsyncIterator[tuple[Server, Asker]]:
    server = Server(list(scripts))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    address = Address.parse(f"http://127.0.0.1:{port}/some/v1/")
    connections = Connections(address)
    yield (
        server,
        Asker(
            address=address,
            connections=connections,
            path="/v1/completions",
            key=key,
            timeout_s=timeout_s,
            on_end=lambda answer: None,
        ),
    )
    connections.close()
    listening.close()
    await server.close()


async def level_of(asker: Asker, level: Level, count: int) -> list[Answer]:
    answers, _ = await run_level(asker, level, [b"{}"] * count, random.Random(1))
    return answers


async def test_so_many_requests_run_at_once_on_as_many_connections() -> None:
    async with asking(answer_well, key="secret-key") as (server, asker):
        answers = await level_of(asker, Level(concurrency=3), 20)
    assert len(answers) == len(server.requests) == 20
    assert server.num_connections == 3
    assert server.most_at_once <= 3
    assert server.requests[0].startswith(b"POST /some/v1/completions HTTP/1.1\r\n")
    assert b"\r\nauthorization: Bearer secret-key\r\n" in server.requests[0]
    for answer in answers:
        assert (answer.error, answer.output_tokens) == (None, 2)
        assert answer.due < answer.times[0] <= answer.times[1] <= answer.end


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (refuse, "429 overloaded"),
        (break_off, "connection: closed"),
        (end_early, "stream: ended without [DONE]"),
        (fail_inside, "stream: unavailable"),
        (speak_otherwise, "connection: not http"),
    ],
)
async def test_every_fault_is_a_kind_and_the_next_request_goes_on(
    script: Script, error: str
) -> None:
    async with asking(script, answer_well) as (_, asker):
        answers = await level_of(asker, Level(concurrency=1), 4)
    assert [answer.error for answer in answers] == [error, None, error, None]


async def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    async with asking(say_nothing, timeout_s=0.05) as (_, asker):
        (answer,) = await level_of(asker, Level(concurrency=1), 1)
    assert answer.error == "timeout"


async def test_a_server_that_is_gone_refuses_connections() -> None:
    async with asking(answer_well) as (_, asker):
        pass
    (answer,) = await level_of(asker, Level(concurrency=1), 1)
    assert answer.error is not None
    assert answer.error.startswith("connection: ")


async def test_arrivals_are_those_of_a_seeded_poisson_process() -> None:
    async with asking(answer_well) as (_, asker):
        answers = await level_of(asker, Level(rate=2000), 50)
    rng = random.Random(1)
    gaps = [later.due - earlier.due for earlier, later in itertools.pairwise(answers)]
    assert gaps == pytest.approx([rng.expovariate(2000) for _ in gaps], abs=1e-9)


def test_prompts_repeat_with_the_seed_and_differ_between_levels() -> None:
    settings = BenchSettings(endpoint="completions", prompt_tokens=20, output_tokens=5, logprobs=2)
    first = list(bodies(settings, "m", stream=1, count=3))
    assert first == list(bodies(settings, "m", stream=1, count=3))
    assert len({*first, *bodies(settings, "m", stream=2, count=3)}) == 6
    asked = json.loads(first[0])
    assert len(asked.pop("prompt").split()) == 20
    assert asked == {
        "model": "m",
        "temperature": 0,
        "max_tokens": 5,
        "ignore_eos": True,
        "logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_prompts_of_a_file_are_used_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one"\n\n{"prompt": "two", "max_tokens": 3}\n{"messages": [], "n": 2}\n')
    settings = BenchSettings(prompts=path, output_tokens=9, ignore_eos=False)
    asked = [json.loads(body) for body in bodies(settings, "m", stream=0, count=4)]
    assert [each["messages"] for each in asked] == [
        [{"role": "user", "content": "one"}],
        [{"role": "user", "content": "two"}],
        [],
        [{"role": "user", "content": "one"}],
    ]
    assert [each["max_tokens"] for each in asked] == [9, 3, 9, 9]
    assert asked[2]["n"] == 2
    assert "ignore_eos" not in asked[0]


def test_prompts_may_hold_every_character_that_ends_a_line_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    text = "a\u2028b\x85c\u2029d"
    path.write_text(f"\ufeff{json.dumps(text, ensure_ascii=False)}\r\n", encoding="utf-8")
    (body,) = bodies(BenchSettings(prompts=path), "m", stream=0, count=1)
    assert json.loads(body)["messages"][0]["content"] == text


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triptych_cli", "bench", "--requests=4", "--warmup=1"]
    return subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.model
@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize("endpoint", ["chat", "completions", "generate"])
def test_bench_measures_the_running_stack(endpoint: str, stack: Stack, tmp_path: Path) -> None:
    url = stack.generate if endpoint == "generate" else stack.gateway
    files = (f"--json={tmp_path / 'out.json'}", f"--plot={tmp_path / 'out.png'}")
    shape = ("--concurrency=1,2", "--prompt-tokens=8", "--output-tokens=5", "--logprobs=1")
    done = bench(f"--url={url}/v1", f"--endpoint={endpoint}", *shape, *files)
    assert done.returncode == 0, done.stderr
    report: Any = json.loads((tmp_path / "out.json").read_text())
    assert (report["model"], report["endpoint"]) == ("smollm2", endpoint)
    assert [level["concurrency"] for level in report["levels"]] == [1, 2]
    for level in report["levels"]:
        assert (level["num_requests"], level["num_answers"], level["errors"]) == (4, 4, {})
        assert (level["output_tokens_mean"], level["counted_by"]) == (5.0, "usage")
        for name in ("first_token_ms", "between_tokens_ms", "per_token_ms", "end_to_end_ms"):
            assert 0 <= level[name]["p50"] <= level[name]["p90"] <= level[name]["p99"]
        assert level["end_to_end_ms"]["p50"] > 0
    if endpoint != "chat":
        assert report["levels"][0]["prompt_tokens_mean"] == 8.0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert f"smollm2 at {url}/v1, {endpoint}\n" in done.stdout
    assert "first token" in done.stdout


@pytest.mark.model
@pytest.mark.xdist_group("stack")
def test_bench_says_in_a_line_why_it_cannot(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('"fine"\n3\n')
    cases = [
        (["--url=http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9: Connection refused"),
        (["--url=ftp://host"], "--url: ftp://host is no http or https address"),
        ([f"--url={stack.gateway}", "--model=no"], "failed: 404 The model `no` does not exist"),
        ([f"--url={stack.gateway}", "--endpoint=generate"], "failed: 404 there is no /inference"),
        ([f"--url={stack.gateway}", f"--prompts={tmp_path}/bad.jsonl"], "--prompts: line 2 of"),
        ([f"--url={stack.gateway}", f"--prompts={tmp_path}/none"], "--prompts:"),
        (
            [f"--url={stack.gateway}", "--json=/no/such/x.json"],
            "--json: /no/such/x.json: No such file",
        ),
        ([f"--url={stack.gateway}", "--plot=x.docx"], "--plot: must end in .png, .svg, .pdf"),
    ]
    for flags, message in cases:
        done = bench(*flags)
        assert (done.returncode, done.stdout) == (1, ""), flags
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_plot_without_matplotlib_is_refused_before_any_load() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from triptych_cli.main import main; sys.exit(main(['bench', '--plot=x.png']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        "triptych bench: matplotlib is not installed; try: pip install 'triptych[bench]'\n"
    )
