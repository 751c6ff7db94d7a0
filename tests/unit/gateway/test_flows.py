"""The gateway's flows over scripted panels and real sockets."""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from support.fakes import FakeDerender, FakeGenerate, FakeRender, Script, token
from support.net import http_client, listening
from triptych import sse
from triptych.errors import InternalError, OverloadedError
from triptych.wire import GenerateDelta, GenerateRequest
from triptych_gateway.flows import Panels
from triptych_gateway.http import create_gateway_app
from triptych_gateway.keys import Keys, RateLimits, make_key
from triptych_gateway.merge import MAX_RUNNING

PATHS = ("/v1/chat/completions", "/v1/completions")


def gateway(generate: FakeGenerate, api_key: str | None = None) -> FastAPI:
    panels = Panels(FakeRender(), generate, FakeDerender())
    keys = Keys({api_key: make_key("default", RateLimits())}) if api_key else None
    return create_gateway_app(panels, max_body_bytes=10_000, keys=keys)


def tokens(*ids: int, error: Exception | None = None, delay_s: float = 0) -> Script:
    """A script that sends ``ids`` one by one, then ends, or raises ``error``."""

    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        for index, token_id in enumerate(ids):
            await asyncio.sleep(random.random() * delay_s)
            is_last = error is None and index == len(ids) - 1
            yield token(request, token_id, is_last=is_last)
        if error is not None:
            raise error

    return script


async def endless(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
    while True:
        yield token(request, 5)
        await asyncio.sleep(0.01)


async def silent(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
    await asyncio.Event().wait()
    yield token(request, 5)


def frames(text: str) -> list[Any]:
    return [
        msgspec.json.decode(line.removeprefix("data: "))
        for line in text.strip().split("\n\n")
        if line != "data: [DONE]"
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_whole_answer_joins_each_prompts_deltas(path: str) -> None:
    app = gateway(FakeGenerate(tokens(5, 6, 7, delay_s=0.01)))
    async with http_client(app) as client:
        answer = await client.post(path, json={"prompts": [[1], [2]]})
    assert answer.json()["ids"] == [[[5, 6, 7]], [[5, 6, 7]]]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_that_takes_too_long_is_a_504_and_aborts(is_stream: bool) -> None:
    generate = FakeGenerate(silent)
    panels = Panels(FakeRender(), generate, FakeDerender())
    app = create_gateway_app(panels, max_body_bytes=10_000, request_timeout_s=1)
    async with http_client(app) as client:
        answer = await client.post(PATHS[0], json={"prompts": [[1], [2]], "stream": is_stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert len(generate.aborted) == 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_prompts_of_a_large_request_take_turns(is_stream: bool) -> None:
    num_prompts = 3 * MAX_RUNNING + 1
    running: set[str | None] = set()
    most = 0

    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        nonlocal most
        running.add(request.request_id)
        most = max(most, len(running))
        yield token(request, request.token_ids[0])
        await asyncio.sleep(0)
        running.discard(request.request_id)
        yield token(request, 7, is_last=True)

    async with http_client(gateway(FakeGenerate(script))) as client:
        body = {"prompts": [[index] for index in range(num_prompts)], "stream": is_stream}
        answer = await client.post(PATHS[1], json=body)
    if is_stream:
        seen = [entry for frame in frames(answer.text) for entry in frame]
        firsts = {prompt_index: ids[0] for prompt_index, _, ids in seen[::-1]}
        assert firsts == {index: index for index in range(num_prompts)}
    else:
        assert answer.json()["ids"] == [[[index, 7]] for index in range(num_prompts)]
    assert most == MAX_RUNNING


@pytest.mark.parametrize("seed", [None, 0, 7])
async def test_generate_gets_the_clients_seed_or_one_of_the_gateways(seed: int | None) -> None:
    seeds: list[int | None] = []

    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        seeds.append(request.sampling_params.seed)
        yield token(request, 7, is_last=True)

    async with http_client(gateway(FakeGenerate(script))) as client:
        await client.post(PATHS[1], json={"prompts": [[1], [2]], "seed": seed})
    if seed is None:
        assert None not in seeds
        assert seeds[0] != seeds[1]
    else:
        assert seeds == [seed, seed]


@pytest.mark.parametrize("path", PATHS)
async def test_stream_keeps_each_prompts_order_whatever_the_timing(path: str) -> None:
    app = gateway(FakeGenerate(tokens(*range(20), delay_s=0.003)))
    async with http_client(app) as client:
        answer = await client.post(path, json={"prompts": [[1], [2], [3]], "stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for frame in frames(answer.text):
        for prompt_index, _, ids in frame:
            seen[prompt_index] += ids
    assert seen == {0: list(range(20)), 1: list(range(20)), 2: list(range(20))}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_refusal_before_the_first_token_keeps_its_status(is_stream: bool) -> None:
    busy = OverloadedError("9 wait, limit is 8", retry_after_s=2)
    async with http_client(gateway(FakeGenerate(tokens(error=busy)))) as client:
        answer = await client.post(PATHS[0], json={"prompts": [[1]], "stream": is_stream})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")


async def test_failure_at_the_third_token_ends_the_stream_with_one_error_event() -> None:
    script = tokens(5, 6, error=InternalError("the model gave NaN"))
    async with http_client(gateway(FakeGenerate(script))) as client:
        answer = await client.post(PATHS[0], json={"prompts": [[1]], "stream": True})
    parts = answer.text.strip().split("\n\n")
    assert len(parts) == 3
    assert parts[-1].startswith("event: error\ndata: ")
    assert "the model gave NaN" in parts[-1]


async def test_failure_of_one_prompt_aborts_the_others() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        if request.token_ids == [1]:
            raise InternalError("broken")
        async for delta in endless(request):
            yield delta

    generate = FakeGenerate(script)
    async with http_client(gateway(generate)) as client:
        answer = await client.post(PATHS[0], json={"prompts": [[1], [2]]})
    assert answer.status_code == 500
    assert [name.rpartition("-")[2] for name in generate.aborted] == ["1"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_failure_of_a_prompt_that_has_stopped_leaves_the_others(is_stream: bool) -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        has_stopped = request.token_ids == [1]
        ids = (FakeDerender.STOP,) if has_stopped else (5, 6, 7)
        async for delta in tokens(*ids, error=InternalError("x") if has_stopped else None)(request):
            yield delta

    async with http_client(gateway(FakeGenerate(script))) as client:
        body = {"prompts": [[1], [2]], "stop": ["x"], "stream": is_stream}
        answer = await client.post(PATHS[1], json=body)
    assert answer.status_code == 200
    assert "7" in answer.text
    assert "error" not in answer.text


@pytest.mark.parametrize("is_stream", [False, True])
async def test_stop_string_cancels_generate(is_stream: bool) -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        yield token(request, 5)
        yield token(request, FakeDerender.STOP)
        async for delta in endless(request):
            yield delta

    generate = FakeGenerate(script)
    async with http_client(gateway(generate)) as client:
        body = {"prompts": [[1], [2]], "stop": ["x"], "stream": is_stream}
        answer = await client.post(PATHS[1], json=body)
    assert answer.status_code == 200
    assert len(generate.aborted) == 2


@pytest.mark.parametrize("script", [endless, silent])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_client_that_leaves_cancels_generate(script: Script, is_stream: bool) -> None:
    generate = FakeGenerate(script)
    async with listening(gateway(generate)) as service:
        host, port = service.addresses[0].removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = msgspec.json.encode({"prompts": [[1]], "stream": is_stream})
        head = f"POST {PATHS[0]} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.wait_for(generate.started.wait(), 5)
        writer.transport.abort()
        await asyncio.wait_for(generate.abort_seen.wait(), 5)


async def flood(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
    delta = token(request, 5)
    choice = msgspec.structs.replace(delta.choices[0], token_ids=list(range(1000, 3000)))
    while True:
        yield msgspec.structs.replace(delta, choices=[choice])
        await asyncio.sleep(0)


async def test_slow_reader_holds_generate_back() -> None:
    sent = 0

    async def script(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        nonlocal sent
        async for delta in flood(request):
            sent += 1
            yield delta

    generate = FakeGenerate(script)
    async with (
        http_client(gateway(generate)) as client,
        client.stream("POST", PATHS[0], json={"prompts": [[1]], "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
    assert sent < 2000


async def test_client_that_does_not_read_is_left_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "READ_OUT_S", 0.1)
    generate = FakeGenerate(flood)
    panels = Panels(FakeRender(), generate, FakeDerender())
    app = create_gateway_app(panels, max_body_bytes=10_000, request_timeout_s=1)
    async with (
        http_client(app) as client,
        client.stream("POST", PATHS[0], json={"prompts": [[1]], "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        await asyncio.wait_for(generate.abort_seen.wait(), 10)
    assert app.state.metrics.num_in_flight == 0


async def test_api_key_is_needed_when_set() -> None:
    app = gateway(FakeGenerate(tokens(5)), api_key="s3cret")
    wrong = [{}, {"authorization": "Bearer nope"}, {"authorization": "Basic s3cret"}]
    async with http_client(app) as client:
        for headers in wrong:
            for path in PATHS:
                answer = await client.post(path, json={"prompts": [[1]]}, headers=headers)
                assert answer.status_code == 401
            for path in ("/v1/models", "/v1/models/fake"):
                assert (await client.get(path, headers=headers)).status_code == 401
        right = {"authorization": "Bearer s3cret"}
        good = await client.post(PATHS[0], json={"prompts": [[1]]}, headers=right)
        models = await client.get("/v1/models", headers=right)
        health = await client.get("/health")
    assert good.status_code == 200
    assert models.json()["data"][0]["id"] == "fake"
    assert health.status_code == 200


@pytest.mark.parametrize("header", ["Bearer", "Bearer none", "Basic x"])
async def test_any_authorization_is_let_in_where_no_key_is_set(header: str) -> None:
    async with http_client(gateway(FakeGenerate(tokens(5)))) as client:
        headers = {"authorization": header}
        answer = await client.post(PATHS[1], json={"prompts": [[1]]}, headers=headers)
    assert answer.status_code == 200


async def test_readiness_follows_the_panels() -> None:
    class Down(FakeGenerate):
        async def info(self) -> Any:
            raise OverloadedError("down")

    async with http_client(gateway(FakeGenerate(tokens(5)))) as client:
        assert (await client.get("/ready")).status_code == 200
    async with http_client(gateway(Down(tokens(5)))) as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200


async def test_no_task_is_left_behind() -> None:
    app = gateway(FakeGenerate(tokens(5, 6)))
    async with http_client(app) as client:
        for is_stream in (False, True):
            await client.post(PATHS[0], json={"prompts": [[1], [2]], "stream": is_stream})
        names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not any("_pump" in name for name in names)


async def test_passed_through_endpoints() -> None:
    async with http_client(gateway(FakeGenerate(tokens(5)))) as client:
        answers = [
            await client.post("/tokenize", json={}),
            await client.post("/detokenize", json={}),
            await client.get("/tokenizer_info"),
        ]
    assert [answer.json() for answer in answers] == [{"tokens": []}, {"prompt": ""}, {}]
