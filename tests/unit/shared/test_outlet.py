"""A stream's two ways out: its generator's frames, and parts sent at once, always in order."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from support.asgi_client import Client
from triptych import sse


def part(number: int) -> bytes:
    return b"data: %d\n\n" % number


async def numbered(
    outlet: sse.Outlet, num_parts: int, rng: random.Random, share_at_once: float
) -> AsyncGenerator[bytes, None]:
    """The parts in order: some go to ``outlet`` while this waits, if that is free."""
    for number in range(num_parts):
        for _ in range(rng.choice([0, 0, 1, 3])):
            await asyncio.sleep(0)
        if outlet.is_free and rng.random() < share_at_once:
            outlet.send_at_once(part(number))
        else:
            yield part(number)


@given(
    num_parts=st.integers(0, 20),
    turns=st.lists(st.integers(0, 5), max_size=20),
    share_at_once=st.sampled_from([0.0, 0.5, 1.0]),
    rng=st.randoms(use_true_random=False),
)
async def test_parts_of_both_ways_arrive_once_and_in_order(
    num_parts: int, turns: list[int], share_at_once: float, rng: random.Random
) -> None:
    outlet = sse.Outlet()
    frames = numbered(outlet, num_parts, rng, share_at_once)
    client = Client(turns)
    await client.read(await sse.primed(frames, outlet))
    assert b"".join(client.parts) == b"".join(map(part, range(num_parts)))
    assert not outlet.is_free


async def stalled(outlet: sse.Outlet, client: Client) -> AsyncGenerator[bytes, None]:
    """A frame, a part that waits for ``client``, and a frame after it, which waits for that."""
    yield part(0)
    client.reads.clear()
    outlet.send_at_once(part(1))
    assert not outlet.is_free
    yield part(2)
    assert outlet.is_free


async def begun(outlet: sse.Outlet, client: Client) -> "asyncio.Task[dict[str, str]]":
    """A stream of which one part waits for the client."""
    response = await sse.primed(stalled(outlet, client), outlet)
    answer = asyncio.create_task(client.read(response))
    await client.is_stalled.wait()
    return answer


async def test_part_that_waits_for_the_client_holds_back_the_generator() -> None:
    answer = await begun(sse.Outlet(), client := Client([]))
    await asyncio.sleep(0.01)
    assert client.parts == [part(0)]
    client.reads.set()
    await answer
    assert client.parts == [part(0), part(1), part(2), b""]


async def test_client_that_leaves_ends_what_waits() -> None:
    before = asyncio.all_tasks()
    answer = await begun(sse.Outlet(), client := Client([], is_gone_after=1))
    assert await answer == {"client": "gone"}
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    client.reads.set()
    await asyncio.sleep(0)
    assert client.parts == [part(0)]


async def test_server_that_stops_says_so_after_what_waits() -> None:
    answer = await begun(sse.Outlet(), client := Client([]))
    await asyncio.sleep(0)
    answer.cancel()
    await asyncio.sleep(0)
    client.reads.set()
    assert (await answer)["error"]
    assert client.parts[:2] == [part(0), part(1)]
    assert client.parts[-1].startswith(b"event: error\n")


async def test_server_whose_send_fails_is_told_of_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outlet = sse.Outlet()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield part(0)
        outlet.send_at_once(part(1))

    sent: list[bytes] = []

    async def send(message: Message) -> None:
        if message.get("body") == part(1):
            raise OSError("no route")
        sent.append(message.get("body", b""))

    response = await sse.primed(frames(), outlet)
    await response({"type": "http", "triptych.notes": {}}, Client([]).receive, send)
    assert "no route" in caplog.text
    assert sent[-2].startswith(b"event: error\n")
