"""`triptych serve` with API keys, a hop secret and JSON logs, as a user starts it."""

import json
from pathlib import Path

import grpc
import httpx
import pytest

from support.stack import Stack, running_stack
from triptych.v1 import generate_pb2, generate_pb2_grpc

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

SECRET = "a-hop-secret-of-a-test"
KEY = "sk-of-a-test"
CHAT = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 3}
GENERATE = {"token_ids": [504, 3575], "sampling_params": {"max_tokens": 3}}


def test_stack_lets_in_those_who_have_a_key_or_the_secret(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smollm2_dir.is_dir()
    (tmp_path / "keys").write_text(f"{KEY} alice\n")
    monkeypatch.setenv("TRIPTYCH_SERVE_HOP_SECRET", SECRET)
    flags = (f"--api-keys-file={tmp_path / 'keys'}", "--log-format=json")
    with running_stack(*flags) as stack:
        for path, body, token in doors(stack):
            assert httpx.post(path, json=body, timeout=60).status_code == 401
            headers = {"authorization": f"Bearer {token}"}
            assert httpx.post(path, json=body, headers=headers, timeout=60).status_code == 200
        assert grpc_code(stack, ()) is grpc.StatusCode.UNAUTHENTICATED
        assert grpc_code(stack, (("authorization", f"Bearer {SECRET}"),)) is None
        log = stack.log.read_text()
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    asked = [record for record in records if record.get("path") == "/v1/chat/completions"]
    assert [(record["status"], record.get("key")) for record in asked] == [
        (401, None),
        (200, "alice"),
    ]
    assert SECRET not in log
    assert KEY not in log


def doors(stack: Stack) -> list[tuple[str, object, str]]:
    """Work of each service, and what lets a caller in."""
    return [
        (f"{stack.gateway}/v1/chat/completions", CHAT, KEY),
        (f"{stack.render}/v1/chat/completions/render", CHAT, SECRET),
        (f"{stack.generate}/inference/v1/generate", GENERATE, SECRET),
    ]


def grpc_code(stack: Stack, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode | None:
    """How generate's gRPC door refuses; None: it answers."""
    with grpc.insecure_channel(stack.generate_grpc) as channel:
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        try:
            stub.GetInfo(generate_pb2.GetInfoRequest(), timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return None
