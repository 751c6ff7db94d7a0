"""Each service in a process of its own, the gateway reaching them over gRPC: the same answers."""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from support.openai_runs import seen_of_stream
from support.stack import Stack, free_ports, stop, wait_for

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Say hi 🙂"}],
            "max_tokens": 10,
            "seed": 4,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 3,
        },
    ),
    (
        "/v1/completions",
        {
            "prompt": ["The capital of France is", "Hello"],
            "max_tokens": 8,
            "temperature": 0,
            "logprobs": 2,
            "echo": True,
            "stop": ["\n"],
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Yes or no?"}],
            "max_tokens": 10,
            "temperature": 0,
            "structured_outputs": {"choice": ["yes", "no", "maybe"]},
        },
    ),
]


@pytest.fixture(scope="module")
def gateway(stack: Stack, smollm2_dir: Path) -> Iterator[str]:
    """A gateway over gRPC to its own render and derender and to the stack's generate.

    derender starts from a directory that holds tokenizer.json alone.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        bare = Path(folder) / "bare"
        bare.mkdir()
        (bare / "tokenizer.json").symlink_to(smollm2_dir / "tokenizer.json")
        http, render, derender = free_ports(3)
        name = "--served-model-name=smollm2"
        start(processes, folder, "render", "--http-port=0", f"--grpc-port={render}")
        start(
            processes,
            folder,
            "derender",
            "--http-port=0",
            f"--grpc-port={derender}",
            f"--model={bare}",
            name,
        )
        start(
            processes,
            folder,
            "gateway",
            f"--http-port={http}",
            f"--render=127.0.0.1:{render}",
            f"--derender=127.0.0.1:{derender}",
            f"--generate={stack.generate_grpc}",
        )
        yield f"http://127.0.0.1:{http}"


def start(processes: contextlib.ExitStack, folder: str, command: str, *flags: str) -> None:
    log = Path(folder) / f"{command}.log"
    output = processes.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "triptych_cli", command, *flags], stdout=output, stderr=output
    )
    processes.callback(stop, process)
    wait_for(log, process, "serves on")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_links_over_grpc_answer_as_links_in_process(
    gateway: str, stack: Stack, path: str, body: dict[str, Any], is_stream: bool
) -> None:
    asked = {**body, "stream": is_stream}
    answers = [
        httpx.post(base + path, json=asked, headers={"x-request-id": "same" * 32}, timeout=60)
        for base in (gateway, stack.gateway)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    read = seen_of_stream if is_stream else unstamped
    first, second = (read(answer.text) for answer in answers)
    assert first == second


def unstamped(text: str) -> str:
    """The answer without the time that it was created at."""
    return re.sub(r'"created":\d+', "", text)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": []}, 400),
        (
            "/v1/chat/completions",
            {"model": "x", "messages": [{"role": "user", "content": "a"}]},
            404,
        ),
        ("/v1/completions", {"prompt": [49152]}, 400),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, 400),
    ],
)
def test_errors_cross_grpc_unchanged(
    gateway: str, stack: Stack, path: str, body: dict[str, Any], status: int
) -> None:
    over_grpc = httpx.post(gateway + path, json=body)
    in_process = httpx.post(stack.gateway + path, json=body)
    assert over_grpc.status_code == in_process.status_code == status
    assert over_grpc.json() == in_process.json()


def test_tokenizer_endpoints_are_passed_through(gateway: str, stack: Stack) -> None:
    for base in (gateway, stack.gateway, stack.render):
        tokens = httpx.post(f"{base}/tokenize", json={"prompt": "héllo 🙂"}).json()["tokens"]
        text = httpx.post(f"{base}/detokenize", json={"tokens": tokens}).json()["prompt"]
        assert text == "héllo 🙂"
        assert httpx.get(f"{base}/tokenizer_info").status_code == 200


def test_gateway_is_ready_and_lists_the_model(gateway: str) -> None:
    assert httpx.get(f"{gateway}/ready").status_code == 200
    assert httpx.get(f"{gateway}/v1/models").json()["data"][0]["id"] == "smollm2"


def test_health_and_reflection_are_served(stack: Stack) -> None:
    targets = {
        stack.render_grpc: "triptych.v1.RenderService",
        stack.generate_grpc: "triptych.v1.GenerateService",
        stack.derender_grpc: "triptych.v1.DerenderService",
    }
    for target, service in targets.items():
        with grpc.insecure_channel(target) as channel:
            checked = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=5
            )
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
            assert service in ProtoReflectionDescriptorDatabase(channel).get_services()
