"""SIGTERM, a second signal and a dead engine, as clients see them at each door of generate."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.stack import wait_for
from support.tiny_models import make_tiny_model
from triptych.v1 import generate_pb2, generate_pb2_grpc

TESTS = Path(__file__).parent.parent
PATH = "/inference/v1/generate"
NUM_TOKENS = 12
#: Seconds that any end may take on a busy machine; nothing is measured.
TIMEOUT_S = 100


@dataclass(frozen=True, slots=True)
class Worker:
    """A generate process whose steps the test holds or breaks by a file in ``folder``."""

    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def fail(self) -> None:
        (self.folder / "fail").touch()

    def wait_until_drained(self) -> None:
        """Until the signal has been taken: then readiness is off."""
        wait_for(self.log, self.process, "stopping")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def start(model_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    with contextlib.ExitStack() as stack:

        def start_one(*flags: str) -> Worker:
            log = tmp_path / "log"
            command = [sys.executable, "-m", "support.faulty_generate", str(tmp_path)]
            command += [f"--model={model_dir}", "--http-port=0", "--grpc-port=0", "--threads=1"]
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen([*command, *flags], cwd=TESTS, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_for(log, process, "serves on")
            ports = re.findall(r"(?:http|grpc)://(127\.0\.0\.1:\d+)", log.read_text())
            return Worker(f"http://{ports[0]}", ports[1], process, tmp_path, log)

        yield start_one


class Reader(threading.Thread):
    """A client that reads one answer to its end; ``begun`` is set at the first token."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.begun = threading.Event()
        self.token_ids: list[int] = []
        self.end: Any = None
        self.start()

    def end_within_the_limit(self) -> Any:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "the client was never told"
        return self.end


BODY = {"token_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_tokens": NUM_TOKENS}}


class StreamReader(Reader):
    """Over SSE. ``end``: the finish reason, or the error event's body."""

    def run(self) -> None:
        asked = {**BODY, "stream": True}
        with httpx.stream("POST", self.worker.http + PATH, json=asked, timeout=60) as answer:
            kind = "data"
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if kind == "error":
                    self.end = event["error"]["code"]
                else:
                    (choice,) = event["choices"]
                    self.token_ids += choice["token_ids"]
                    self.end = choice["finish_reason"]
                self.begun.set()


class WholeReader(Reader):
    """One JSON answer. ``end``: the finish reason, or status and Retry-After."""

    def run(self) -> None:
        answer = httpx.post(self.worker.http + PATH, json=BODY, timeout=60)
        if answer.status_code == 200:
            (choice,) = answer.json()["choices"]
            self.token_ids, self.end = choice["token_ids"], choice["finish_reason"]
        else:
            self.end = (answer.status_code, answer.headers.get("retry-after"))


class GrpcReader(Reader):
    """Over gRPC. ``end``: the finish reason's number, or the status."""

    def run(self) -> None:
        with grpc.insecure_channel(self.worker.grpc) as channel:
            try:
                for delta in generate(channel):
                    self.token_ids += delta.choices[0].token_ids
                    self.end = delta.choices[0].finish_reason
                    self.begun.set()
            except grpc.RpcError as error:
                self.end = error.code()


def generate(channel: grpc.Channel) -> Iterator[generate_pb2.GenerateDelta]:
    params = generate_pb2.SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    request = generate_pb2.GenerateRequest(token_ids=[5, 6, 7], sampling_params=params)
    return iter(generate_pb2_grpc.GenerateServiceStub(channel).Generate(request, timeout=60))


@dataclass(frozen=True, slots=True)
class Readers:
    """One client at each door."""

    stream: StreamReader
    whole: WholeReader
    grpc: GrpcReader

    def ends(self) -> tuple[Any, ...]:
        each = (self.stream, self.whole, self.grpc)
        return tuple(reader.end_within_the_limit() for reader in each)


def readers_in_mid_answer(worker: Worker) -> Readers:
    """A client whose stream has begun, and two whose requests wait behind it."""
    worker.hold()
    stream = StreamReader(worker)
    wait_until((worker.folder / "held").exists)
    readers = Readers(stream, WholeReader(worker), GrpcReader(worker))
    wait_until(lambda: num_waiting(worker) == 2)
    assert stream.begun.wait(TIMEOUT_S)
    return readers


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def num_waiting(worker: Worker) -> float:
    page = httpx.get(f"{worker.http}/metrics").text
    return float(re.findall(r"^triptych_generate_waiting (\S+)$", page, re.MULTILINE)[0])


def refusals(worker: Worker) -> None:
    """What a worker that drains says to everyone who asks for work, and to probes."""
    assert httpx.get(f"{worker.http}/ready").status_code == 503
    assert httpx.get(f"{worker.http}/health").status_code == 200
    refused = httpx.post(worker.http + PATH, json=BODY)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.headers["connection"] == "close"
    aborted = httpx.post(f"{worker.http}/inference/v1/abort_requests", json={"request_ids": ["x"]})
    assert aborted.json() == {"aborted": []}
    with grpc.insecure_channel(worker.grpc) as channel:
        with pytest.raises(grpc.RpcError) as error:
            next(generate(channel))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = {each.key: str(each.value) for each in error.value.trailing_metadata()}
        assert trailers["retry-after"] == "1"
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        assert not stub.Abort(generate_pb2.AbortRequest(request_ids=["x"]), timeout=5).aborted
        checked = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="triptych.v1.GenerateService"), timeout=5
        )
        assert checked.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_sigterm_refuses_new_work_and_lets_every_running_answer_end(
    start: Callable[..., Worker],
) -> None:
    worker = start("--drain-timeout-s=600")
    undisturbed = WholeReader(worker)
    assert undisturbed.end_within_the_limit() == "length"
    readers = readers_in_mid_answer(worker)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_until_drained()
    refusals(worker)
    worker.release()
    assert readers.ends() == ("length", "length", generate_pb2.FINISH_REASON_LENGTH)
    for reader in (readers.stream, readers.whole, readers.grpc):
        assert reader.token_ids == undisturbed.token_ids
    assert worker.process.wait(TIMEOUT_S) == 0
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.parametrize("signals", [1, 2])
def test_end_of_the_drain_or_a_second_signal_ends_the_rest_with_503(
    signals: int, start: Callable[..., Worker]
) -> None:
    worker = start("--drain-timeout-s=0.2" if signals == 1 else "--drain-timeout-s=600")
    readers = readers_in_mid_answer(worker)
    for _ in range(signals):
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_until_drained()
    stream, whole, over_grpc = readers.ends()
    assert stream == "unavailable"
    assert whole == (503, "1")
    assert over_grpc is grpc.StatusCode.UNAVAILABLE
    assert worker.process.wait(TIMEOUT_S) == 0
    assert "cut off 3 requests" in worker.log.read_text()


def test_engine_that_dies_ends_every_waiter_and_the_process(start: Callable[..., Worker]) -> None:
    worker = start()
    readers = readers_in_mid_answer(worker)
    worker.fail()
    worker.release()
    stream, whole, over_grpc = readers.ends()
    assert stream == "internal_error"
    assert whole == (500, None)
    assert over_grpc is grpc.StatusCode.INTERNAL
    assert worker.process.wait(TIMEOUT_S) == 1
    log = worker.log.read_text()
    assert "the test breaks this step" in log
    assert log.splitlines()[-1] == "faulty generate: generate cannot go on; the log says why"
