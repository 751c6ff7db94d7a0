"""Processes of a fleet are killed, stopped and drained as they serve: no client sees a difference.

`make test-failover` asks 200 requests; the normal suite 24.
"""

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.local_fleet import PANELS, REPLICAS, TIMEOUT_S, LocalFleet, local_fleet, wait_until
from support.openai_runs import Asked, ask, random_request, with_stop
from support.tiny_models import make_tiny_model

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("failover")]

MAX_TOKENS = 120
#: Requests at a time, during which one replica of one or two panels is struck.
AT_ONCE = 4
#: The longest wait before that, in seconds; answers take about half of it to some times of it.
LONGEST_WAIT_S = 0.4


@pytest.fixture(scope="module")
def fleet(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Workers of a random model with the built-in model's tokenizer."""
    folder = tmp_path_factory.mktemp("fleet")
    tiny = make_tiny_model("llama", folder / "tiny", vocab_size=49152)
    texts = [f"--model={smollm2_dir}", "--max-model-len=512", "--response-template=hermes"]
    generate = [f"--model={tiny}", "--threads=1", "--kv-cache-gb=0.05"]
    flags = {"render": texts, "generate": generate, "derender": texts}
    both = ["--served-model-name=tiny", "--drain-timeout-s=0.1"]
    named = {panel: [*each, *both] for panel, each in flags.items()}
    watch = ["--hang-timeout-s=3", "--probe-every-s=0.2", "--take-over-timeout-s=20"]
    with local_fleet(folder, named, *watch) as started:
        yield started


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=TIMEOUT_S) as opened:
        yield opened


@pytest.fixture(scope="module")
def num_requests(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--failover-requests"))


class Victim:
    """One replica that is killed, stopped or drained, and back after a while."""

    def __init__(self, fleet: LocalFleet, draw: random.Random, panel: str) -> None:
        self._fleet = fleet
        self._panel = panel
        self._name = f"{panel}-{draw.randrange(REPLICAS)}"
        self._number = draw.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        self._wait_s = draw.random() * LONGEST_WAIT_S

    def strike(self) -> None:
        time.sleep(self._wait_s)
        self._fleet.signal(self._name, self._number)

    def revive(self) -> None:
        if self._number == signal.SIGSTOP:
            self._fleet.signal(self._name, signal.SIGCONT)
        else:
            self._fleet.wait_until_gone(self._name)
            self._fleet.start(self._name)
        self._fleet.wait_until_up(self._panel)


def undisturbed(
    fleet: LocalFleet, client: httpx.Client, count: int
) -> list[tuple[Asked, dict[str, Any]]]:
    """Requests of every kind, with what a client sees of each."""
    runs = []
    for number in range(count):
        asked = random_request(number, max_tokens=MAX_TOKENS)
        seen = ask(client, fleet.gateway, asked)
        if number % 4 == 0 and "tools" not in asked.body:
            asked = with_stop(asked, seen)
            seen = ask(client, fleet.gateway, asked)
        runs.append((asked, seen))
    return runs


@pytest.mark.timeout(1800)
def test_no_client_sees_that_processes_die_hang_and_drain(
    fleet: LocalFleet, client: httpx.Client, num_requests: int
) -> None:
    runs = undisturbed(fleet, client, num_requests)
    draw = random.Random(num_requests)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, num_requests, AT_ONCE):
            some = runs[start : start + AT_ONCE]
            asking = [pool.submit(ask, client, fleet.gateway, asked) for asked, _ in some]
            others = [draw.choice(["render", "derender"])] if draw.random() < 0.5 else []
            victims = [Victim(fleet, draw, panel) for panel in ["generate", *others]]
            for victim in victims:
                victim.strike()
            check(some, asking)
            for victim in victims:
                victim.revive()
    assert fleet.metric("resumes_total", panel="generate") > 0
    assert fleet.metric("retries_total", panel="generate") > 0


def check(runs: list[tuple[Asked, dict[str, Any]]], asking: list["Future[Any]"]) -> None:
    for (asked, expected), future in zip(runs, asking, strict=True):
        assert future.result() == expected, asked


@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_may_lose_a_replica_before_the_request(
    fleet: LocalFleet, client: httpx.Client, panel: str
) -> None:
    asked = random_request(5, max_tokens=20)
    expected = ask(client, fleet.gateway, asked)
    fleet.kill(f"{panel}-0")
    try:
        for _ in range(3):
            assert ask(client, fleet.gateway, asked) == expected
        assert httpx.get(f"{fleet.gateway}/ready", timeout=60).status_code == 200
    finally:
        fleet.start(f"{panel}-0")
        fleet.wait_until_up(panel)


@pytest.mark.parametrize("panel", PANELS)
def test_panel_without_replicas_is_a_503_and_not_ready(
    fleet: LocalFleet, client: httpx.Client, panel: str
) -> None:
    names = [f"{panel}-{index}" for index in range(REPLICAS)]
    for name in names:
        fleet.kill(name)
    try:
        wait_until(lambda: fleet.num_up(panel) == 0, fleet.processes["gateway"].log)
        assert httpx.get(f"{fleet.gateway}/ready", timeout=60).status_code == 503
        if panel != "derender":  # for a derender an answer that was generated is waited for
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
            answer = client.post(f"{fleet.gateway}/v1/chat/completions", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    finally:
        for name in names:
            fleet.start(name)
        fleet.wait_until_up(panel)
    assert httpx.get(f"{fleet.gateway}/ready", timeout=60).status_code == 200


def test_answer_that_nobody_can_go_on_with_ends_in_an_error_event(
    fleet: LocalFleet, client: httpx.Client
) -> None:
    body = {"prompt": "a", "max_tokens": 400, "stream": True, "temperature": 0}
    names = [f"generate-{index}" for index in range(REPLICAS)]
    with client.stream("POST", f"{fleet.gateway}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        for name in names:
            fleet.signal(name, signal.SIGKILL)
        rest = list(lines)
    for name in names:
        fleet.wait_until_gone(name)
        fleet.start(name)
    fleet.wait_until_up("generate")
    assert "event: error" in rest
    assert "data: [DONE]" not in rest
