"""One limit for a whole request: every hop gets what is left of it, and ends with it."""

import asyncio
import json

import httpx
import pytest

from support.slow_panels import SlowFleet, slow_fleet

LIMIT_S = 0.8
FOR_EVER = 1000.0


async def ask(fleet: SlowFleet, *, stream: bool) -> httpx.Response:
    """The answer, which would never come without a limit."""
    async with asyncio.timeout(15):
        path = "/v1/chat/completions"
        return await fleet.client.post(path, json={"messages": [], "stream": stream})


def assert_is_late(answer: httpx.Response) -> None:
    """A 504 in OpenAI's form, or an error event at the end of a stream that has begun."""
    if answer.status_code == 200:
        *events, last = answer.text.strip().split("\n\n")
        assert set(events) == {"data: {}"}
        assert last.startswith("event: error\ndata: ")
        error = json.loads(last.partition("data: ")[2])["error"]
    else:
        assert answer.status_code == 504
        error = answer.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_render_that_is_slow_ends_at_the_limit(stream: bool) -> None:
    async with slow_fleet(LIMIT_S, render_s=FOR_EVER) as fleet:
        assert_is_late(await ask(fleet, stream=stream))
        await fleet.until_idle()
        assert max(fleet.render.work.given_s, default=0) <= LIMIT_S
        assert fleet.generate.requests == []


async def test_tokenize_ends_at_the_limit() -> None:
    async with slow_fleet(LIMIT_S, render_s=FOR_EVER) as fleet:
        assert_is_late(await fleet.client.post("/tokenize", json={}))
        await fleet.until_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_generate_gets_what_render_left(stream: bool) -> None:
    slow = slow_fleet(LIMIT_S, render_s=0.3, token_s=0.05, num_tokens=9999)
    async with slow as fleet:
        assert_is_late(await ask(fleet, stream=stream))
        await fleet.until_idle()
        assert max(fleet.generate.work.given_s, default=0) <= LIMIT_S - 0.3


async def test_derender_of_a_whole_answer_gets_what_the_others_left() -> None:
    async with slow_fleet(LIMIT_S, render_s=0.2, token_s=0.1, num_tokens=3) as fleet:
        assert_is_late(await ask(fleet, stream=False))
        await fleet.until_idle()
        assert max(fleet.derender.work.given_s, default=0) <= LIMIT_S - 0.4


async def test_derender_that_is_silent_in_a_stream_ends_at_the_limit() -> None:
    async with slow_fleet(LIMIT_S, render_s=0.3, is_derender_silent=True) as fleet:
        assert_is_late(await ask(fleet, stream=True))
        await fleet.derender.work.until_idle()
        assert max(fleet.derender.work.given_s, default=0) <= LIMIT_S - 0.3


async def test_answer_that_waits_for_a_worker_ends_at_the_limit() -> None:
    async with slow_fleet(2.0, token_s=0.05, num_tokens=9999) as fleet, asyncio.timeout(15):
        asked = {"messages": [], "stream": True}
        async with fleet.client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "data: {}"
            await fleet.generate_server.stop(None)
            rest = [line async for line in lines if line]
        assert rest[-2:-1] == ["event: error"]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
