"""Both clients over HTTP against a server whose every byte is written by the test."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.both_clients import HTTP, ask, parts
from support.canned_server import answer, canned_server, refusal
from support.stack import free_ports
from triptych.client.retries import Retries
from triptych.errors import (
    DeadlineError,
    InternalError,
    OverloadedError,
    RateLimitError,
    UnauthenticatedError,
    UnavailableError,
)

pytestmark = pytest.mark.parametrize("kind", HTTP)

CHOICE = {"index": 0, "text": "hi", "finish_reason": "stop"}
REPLY = answer(200, json.dumps({"id": "cmpl-1", "choices": [CHOICE]}).encode())
FRAME = b'data: {"id": "cmpl-1", "choices": [{"index": 0, "text": "hi"}]}\n\n'
DONE = b"data: [DONE]\n\n"
SOON = "retry-after: 0"
BUSY = [refusal(429, SOON), refusal(429, SOON, code="rate_limit_exceeded"), refusal(503, SOON)]


def complete(client: Any) -> Any:
    return client.complete("Say hi.", max_tokens=3)


def stream(client: Any) -> Any:
    return client.stream_complete("Say hi.", max_tokens=3)


def test_busy_server_is_asked_again_with_the_same_request(kind: str) -> None:
    with canned_server([*BUSY, REPLY]) as server:
        reply = ask(kind, server.url, complete, api_key="k-1")
    assert reply.text == "hi"
    assert len(server.requests) == 4
    for path, headers, body in server.requests:
        assert (path, body) == ("/v1/completions", {"prompt": "Say hi.", "max_tokens": 3})
        assert headers["authorization"] == "Bearer k-1"
        assert headers["content-type"] == "application/json"


def test_stream_of_a_busy_server_is_asked_for_again(kind: str) -> None:
    with canned_server([*BUSY, answer(200, FRAME * 3 + DONE)]) as server:
        chunks = parts(kind, server.url, stream)
    assert [chunk.text for chunk in chunks] == ["hi"] * 3
    assert server.requests[-1][2]["stream"] is True
    assert server.requests[-1][2]["stream_options"]["include_usage"] is True


def test_answer_that_has_begun_is_not_asked_for_again(kind: str) -> None:
    broken = answer(200, b'{"id":', length=99)
    with (
        canned_server([broken, REPLY]) as server,
        pytest.raises(UnavailableError, match="broke off"),
    ):
        ask(kind, server.url, complete)
    assert len(server.requests) == 1


@pytest.mark.parametrize("length", [None, 999])
def test_stream_that_ends_early_is_an_error_and_not_asked_for_again(
    kind: str, length: int | None
) -> None:
    with (
        canned_server([answer(200, FRAME, length=length), answer(200, DONE)]) as server,
        pytest.raises(UnavailableError),
    ):
        parts(kind, server.url, stream)
    assert len(server.requests) == 1


def test_error_in_a_stream_comes_after_what_was_sent(kind: str) -> None:
    error = {"message": "full", "type": "rate_limit_error", "code": "overloaded", "param": None}
    event = b"event: error\ndata: " + json.dumps({"error": error}).encode() + b"\n\n"
    with (
        canned_server([answer(200, FRAME + event), answer(200, DONE)]) as server,
        pytest.raises(OverloadedError, match="full"),
    ):
        parts(kind, server.url, stream)
    assert len(server.requests) == 1


def test_attempts_are_bounded_and_the_last_error_is_raised(kind: str) -> None:
    with canned_server(BUSY * 3) as server, pytest.raises(RateLimitError):
        ask(kind, server.url, complete, retries=Retries(limit=1))
    assert len(server.requests) == 2


def test_refusal_is_raised_at_once(kind: str) -> None:
    with (
        canned_server([refusal(401, code="invalid_api_key"), REPLY]) as server,
        pytest.raises(UnauthenticatedError, match="refused with 401"),
    ):
        ask(kind, server.url, complete)
    assert len(server.requests) == 1


def test_connection_that_is_closed_without_an_answer_is_made_anew(kind: str) -> None:
    with canned_server([b"", REPLY]) as server:
        assert ask(kind, server.url, complete).text == "hi"


def test_server_that_is_not_there_is_unavailable(kind: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match="is not reachable"):
        ask(kind, f"http://127.0.0.1:{port}", complete, retries=Retries(limit=0))


def test_silent_server_is_given_up(kind: str) -> None:
    with silent_server() as url, pytest.raises(DeadlineError, match="in time"):
        ask(kind, url, complete, timeout_s=0.2)


@pytest.mark.parametrize("body", [b"<html>", b'{"id": "x"}', b'{"id": "x", "choices": [1]}'])
def test_answer_that_is_no_reply_is_an_internal_error(kind: str, body: bytes) -> None:
    with (
        canned_server([answer(200, body)]) as server,
        pytest.raises(InternalError, match="cannot be read"),
    ):
        ask(kind, server.url, complete)


def test_reply_of_another_server_needs_no_more_than_openais_fields(kind: str) -> None:
    message = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    sent = answer(200, json.dumps({**body, "choices": [choice]}).encode())
    with canned_server([sent]) as server:
        assert ask(kind, server.url, lambda client: client.chat("Say hi.")).text == "hi"
    assert server.requests[0][2] == {"messages": [{"role": "user", "content": "Say hi."}]}


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
