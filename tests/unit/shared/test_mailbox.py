"""The mailbox: what comes is read in order, whoever deals with it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.takers import drawn_taker
from triptych.errors import OverloadedError
from triptych.mailbox import Mailbox
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta


def delta(token_id: int, finish_reason: FinishReason | None = None) -> GenerateDelta:
    choice = ChoiceDelta(index=0, token_ids=[token_id], finish_reason=finish_reason)
    return GenerateDelta(request_id="r", choices=[choice])


def ids(deltas: list[GenerateDelta]) -> list[int]:
    return [each for one in deltas for choice in one.choices for each in choice.token_ids]


async def read(mailbox: Mailbox, heard: list[GenerateDelta], pauses: list[int]) -> None:
    """Read to the end; ``pauses``: turns of the event loop before each read."""
    for turns in (*pauses, *[0] * 99):
        for _ in range(turns):
            await asyncio.sleep(0)
        if (one := await mailbox.get()) is None:
            return
        heard.append(one)


@given(
    puts=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    pauses=st.lists(st.integers(0, 5), max_size=30),
    share_taken=st.sampled_from([0, 0.5, 1]),
    fails=st.booleans(),
)
async def test_reader_and_taker_get_everything_once_and_in_order(
    puts: list[int], pauses: list[int], share_taken: float, fails: bool
) -> None:
    """``puts``: turns of the event loop before each delta."""
    heard: list[GenerateDelta] = []
    taker = drawn_taker(len(puts), share_taken, heard.append)
    mailbox = Mailbox(request_id="r", choices=[0], taker=taker)
    reader = asyncio.create_task(read(mailbox, heard, pauses))
    for number, turns in enumerate(puts):
        for _ in range(turns):
            await asyncio.sleep(0)
        is_last = number == len(puts) - 1 and not fails
        mailbox.put(delta(number, "length" if is_last else None))
    if fails:
        mailbox.fail(OverloadedError("9 wait, limit is 8"))
    mailbox.put(delta(99))
    (end,) = await asyncio.gather(reader, return_exceptions=True)
    assert isinstance(end, OverloadedError) == fails
    assert ids(heard) == list(range(len(puts)))


async def test_what_the_taker_takes_does_not_wake_the_reader() -> None:
    taken: list[GenerateDelta] = []
    mailbox = Mailbox(request_id="r", choices=[0], taker=drawn_taker(1, 1, taken.append))
    mailbox.put(delta(1))  # nobody waits yet
    assert mailbox.num_waiting == 1
    heard: list[GenerateDelta] = []
    reader = asyncio.create_task(read(mailbox, heard, []))
    await asyncio.sleep(0)
    mailbox.put(delta(2))
    mailbox.put(delta(3))
    assert (ids(heard), ids(taken), mailbox.num_waiting) == ([1], [2, 3], 0)
    mailbox.put(delta(4, "stop"))
    await reader
    assert (ids(heard), mailbox.end) == ([1, 4], "stop")


async def test_nothing_is_offered_once_the_reader_is_to_wake() -> None:
    offered: list[int] = []

    def refuse(one: GenerateDelta) -> bool:
        offered.extend(ids([one]))
        return False

    mailbox = Mailbox(request_id="r", choices=[0], taker=refuse)
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(delta(1))
    mailbox.put(delta(2))
    both = await reader
    assert both is not None
    assert (offered, ids([both])) == ([1], [1, 2])


async def test_reader_is_raised_what_its_taker_raises() -> None:
    def broken(one: GenerateDelta) -> bool:
        raise RuntimeError("a fault of ours")

    mailbox = Mailbox(request_id="r", choices=[0], taker=broken)
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(delta(1))
    mailbox.put(delta(2))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await reader


async def test_nothing_is_offered_to_a_reader_that_leaves() -> None:
    taken: list[GenerateDelta] = []
    mailbox = Mailbox(request_id="r", choices=[0], taker=drawn_taker(1, 1, taken.append))
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    reader.cancel()
    mailbox.put(delta(1))
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not taken
