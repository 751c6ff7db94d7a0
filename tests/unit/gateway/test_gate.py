"""The gateway's door over real sockets: keys, limits a minute, and room for work."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from support.fakes import FakeDerender, FakeGenerate, FakeRender, token
from support.net import http_client
from triptych.wire import GenerateDelta, GenerateRequest
from triptych_gateway.flows import Panels
from triptych_gateway.gate import KeySource, Room
from triptych_gateway.http import create_gateway_app
from triptych_gateway.keys import Keys, RateLimits, make_key

CHAT = "/v1/chat/completions"
OUTPUT = 3


class Held:
    """A generate whose answers wait until the test lets them end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.num_begun = 0

    async def __call__(self, request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        self.num_begun += 1
        yield token(request, 5)
        await self.may_end.wait()
        for index in range(1, OUTPUT):
            yield token(request, 5, is_last=index == OUTPUT - 1)

    async def until_begun(self, count: int) -> None:
        while self.num_begun < count:  # noqa: ASYNC110  # the flow has no event to wait for
            await asyncio.sleep(0.001)


def client_of(script: Held, *, keys: KeySource | None = None, room: Room | None = None) -> Any:
    panels = Panels(FakeRender(), FakeGenerate(script), FakeDerender())
    app = create_gateway_app(panels, max_body_bytes=10_000, keys=keys, room=room or Room())
    return http_client(app)


def keys_with(**limits: int) -> Keys:
    return Keys({"s3cret": make_key("alice", RateLimits(**limits))})


def ask(
    client: httpx.AsyncClient, prompt: list[int], key: str = "s3cret", *, is_stream: bool = False
) -> asyncio.Task[httpx.Response]:
    headers = {"authorization": f"Bearer {key}"}
    body = {"prompts": [prompt], "stream": is_stream}
    return asyncio.create_task(client.post(CHAT, json=body, headers=headers))


def assert_refused(answer: httpx.Response, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
    assert int(answer.headers["retry-after"]) >= 1


async def held(client: httpx.AsyncClient) -> dict[str, float]:
    """What the gateway works on, and what it refused, from its metrics."""
    lines = (await client.get("/metrics")).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("triptych_gateway_"): float(value) for name, value in pairs}


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize", "/tokenizer_info", "/nowhere"])
async def test_everything_but_probes_needs_a_key(path: str) -> None:
    async with client_of(Held(), keys=keys_with()) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
            answer = await client.request("GET", path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for open_path in ("/health", "/ready", "/metrics", "/version"):
            assert (await client.get(open_path)).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
async def test_requests_beyond_the_room_are_refused_and_the_others_finish(is_stream: bool) -> None:
    script = Held()
    async with client_of(script, room=Room(requests=2)) as client:
        running = [ask(client, [1, 2], is_stream=is_stream) for _ in range(2)]
        await script.until_begun(2)
        assert_refused(await ask(client, [1]), "overloaded")
        assert (await client.get("/v1/models")).status_code == 200  # reading needs no room
        assert (await held(client))["requests_held"] == 2
        script.may_end.set()
        assert [(await each).status_code for each in running] == [200, 200]
        now = await held(client)
        assert (now["requests_held"], now["prompt_tokens_held"]) == (0, 0)
        assert now['errors_total{code="overloaded"}'] == 1
        assert now[f'requests_total{{endpoint="{CHAT}",status="429"}}'] == 1


async def test_prompts_beyond_the_room_are_refused_but_one_alone_never_is() -> None:
    script = Held()
    async with client_of(script, room=Room(prompt_tokens=4)) as client:
        large = ask(client, [1] * 9)
        await script.until_begun(1)
        refused = await ask(client, [1])
        assert_refused(refused, "overloaded")
        assert "10 tokens" in refused.json()["error"]["message"]
        script.may_end.set()
        assert (await large).status_code == 200
        assert (await ask(client, [1])).status_code == 200


async def test_client_that_leaves_gives_its_room_back() -> None:
    script = Held()
    async with client_of(script, room=Room(requests=1)) as client:
        leaving = ask(client, [1, 2, 3])
        await script.until_begun(1)
        leaving.cancel()
        while (await held(client))["requests_held"]:
            pass
        assert (await held(client))["prompt_tokens_held"] == 0


async def test_requests_of_a_key_beyond_its_limit_are_refused() -> None:
    script = Held()
    script.may_end.set()
    async with client_of(script, keys=keys_with(requests_per_minute=2)) as client:
        answers = [await ask(client, [1]) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert_refused(answers[2], "rate_limit_exceeded")
    shown = [
        [each.headers[f"x-ratelimit-{what}-requests"] for what in ("limit", "remaining")]
        for each in answers
    ]
    assert shown == [["2", "1"], ["2", "0"], ["2", "0"]]
    assert answers[0].headers["x-ratelimit-reset-requests"] == "30s"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30


async def test_tokens_of_a_key_are_those_of_prompts_and_outputs() -> None:
    script = Held()
    script.may_end.set()
    async with client_of(script, keys=keys_with(tokens_per_minute=12)) as client:
        first = await ask(client, [1] * 6)
        second = await ask(client, [1] * 6)
        third = await ask(client, [1])
        now = await held(client)
    assert first.headers["x-ratelimit-remaining-tokens"] == "6"
    assert second.status_code == 200  # it may use up more than is left
    assert_refused(third, "rate_limit_exceeded")
    assert 5 <= int(third.headers["retry-after"]) <= 40
    assert now['key_tokens_total{key="alice",kind="prompt"}'] == 12
    assert now['key_tokens_total{key="alice",kind="output"}'] == 2 * OUTPUT
    assert now['key_requests_total{key="alice"}'] == 2


async def test_requests_without_a_key_are_counted_too() -> None:
    script = Held()
    script.may_end.set()
    async with client_of(script) as client:
        await ask(client, [1, 2])
        now = await held(client)
    assert now['key_requests_total{key="none"}'] == 1
    assert now['key_tokens_total{key="none",kind="prompt"}'] == 2


async def test_times_of_hops_and_tokens_are_measured() -> None:
    script = Held()
    script.may_end.set()
    async with client_of(script) as client:
        for is_stream in (False, True):
            await ask(client, [1], is_stream=is_stream)
        now = await held(client)
    for hop in ("render", "generate", "derender"):
        assert now[f'hop_seconds_count{{hop="{hop}"}}'] == 2
    assert now["first_token_seconds_count"] == now["between_tokens_seconds_count"] == 2
