"""A client that leaves frees what its request held, through all hops."""

import re
import time

import httpx
import pytest

from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

ASKED = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "n": 2}


def gauge(stack: Stack, name: str) -> float:
    page = httpx.get(f"{stack.generate}/metrics").text
    (value,) = re.findall(rf"^triptych_generate_{name} (\S+)$", page, re.MULTILINE)
    return float(value)


def wait_until(stack: Stack, name: str, value: float) -> None:
    deadline = time.monotonic() + 60
    while gauge(stack, name) != value:
        assert time.monotonic() < deadline, f"{name} is {gauge(stack, name)}, not {value}"
        time.sleep(0.02)


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_that_leaves_frees_its_blocks(stack: Stack, is_stream: bool) -> None:
    wait_until(stack, "running", 0)
    free = gauge(stack, "kv_blocks_free")
    with httpx.Client(timeout=60 if is_stream else 1.5) as client:
        try:
            with client.stream(
                "POST", f"{stack.gateway}/v1/completions", json={**ASKED, "stream": is_stream}
            ) as answer:
                chunks = answer.iter_bytes()  # dropping it closes the connection
                beginning = next(chunks)
                assert answer.is_success, beginning
                wait_until(stack, "running", 2)
        except httpx.ReadTimeout:
            assert not is_stream
    wait_until(stack, "running", 0)
    wait_until(stack, "kv_blocks_free", free)


def test_abort_ends_a_request_with_its_reason(stack: Stack) -> None:
    body = {"token_ids": [504], "sampling_params": {"max_tokens": 4000, "ignore_eos": True}}
    asked = {**body, "request_id": "to-abort", "stream": True}
    url = f"{stack.generate}/inference/v1/generate"
    with httpx.stream("POST", url, json=asked, timeout=60) as answer:
        events = answer.iter_lines()
        assert "finish_reason" in next(events)
        aborted = httpx.post(
            f"{stack.generate}/inference/v1/abort_requests",
            json={"request_ids": ["to-abort", "unknown"]},
            timeout=60,
        )
        assert aborted.json() == {"aborted": ["to-abort"]}
        assert '"finish_reason":"abort"' in "".join(events)
    wait_until(stack, "running", 0)
