"""Frames of plain tokens, which pass the gateway's tasks by: the stream is the same without."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.asgi_client import Client
from support.fake_fleet import info
from support.fakes import FakeRender
from triptych import sse
from triptych.mailbox import Mailbox, Taker
from triptych.reply import Rendered, ReplySpec, chat_reply_spec
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo, SamplingParams
from triptych_derender.derenderer import ReplyStream
from triptych_gateway import flows
from triptych_gateway.flows import Flow, Panels
from triptych_gateway.in_process import InProcessDerender
from triptych_gateway.metered import metered
from triptych_gateway.metrics import GatewayMetrics
from unit.derender import toys

TABLE = toys.byte_level_table()
DERENDERER = toys.toy_derenderer(TABLE)
PROMPT = [1, 2]


class DrawnGenerate:
    """Sends ``deltas`` as a session does; ``turns`` of the event loop pass before each."""

    def __init__(self, deltas: Sequence[GenerateDelta], turns: Sequence[int]) -> None:
        self.num_given = 0
        self._deltas = deltas
        self._turns = turns

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        mailbox = Mailbox(request_id="r", choices=[0], taker=taker)
        sending = asyncio.create_task(self._send(mailbox))
        try:
            while (delta := await mailbox.get()) is not None:
                self.num_given += 1
                yield delta
        finally:
            sending.cancel()

    async def _send(self, mailbox: Mailbox) -> None:
        for index, delta in enumerate(self._deltas):
            for _ in range(self._turns[index % len(self._turns)]):
                await asyncio.sleep(0)
            mailbox.put(delta)

    async def info(self) -> ModelInfo:
        return info()


@dataclass(slots=True)
class Counter:
    """The part of a ticket that counts."""

    num_tokens: int = 0
    came_at: float = 0.0

    def count_output(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens


def flow_of(spec: ReplySpec, link: DrawnGenerate, ticket: Counter | None = None) -> Flow:
    panels = Panels(FakeRender(), link, InProcessDerender(DERENDERER))
    request = GenerateRequest(token_ids=PROMPT, sampling_params=SamplingParams(seed=1))
    own = metered(panels, cast(Any, ticket or Counter()), GatewayMetrics())
    return Flow(own, Rendered(requests=[request], spec=spec), "r", 1)


async def streamed(
    spec: ReplySpec, link: DrawnGenerate, client: Client, ticket: Counter
) -> list[Any]:
    """The chunks that ``client`` gets."""
    outlet = sse.Outlet()
    frames = flows.stream(flow_of(spec, link, ticket), outlet)
    await client.read(await sse.primed(frames, outlet))
    events = b"".join(client.parts).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@given(
    token_ids=st.lists(st.integers(0, TABLE.num_tokens - 2), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=30),
    stop=st.sampled_from([[], ["ab"], ["\n", "世"]]),
    scored=st.booleans(),
    turns=st.lists(st.sampled_from([0, 0, 1, 4, 9]), min_size=1, max_size=30),
    waits=st.lists(st.integers(0, 6), max_size=30),
)
async def test_client_reads_the_same_whatever_came_by_which_way(
    token_ids: list[int],
    cuts: list[int],
    stop: list[str],
    scored: bool,
    turns: list[int],
    waits: list[int],
) -> None:
    ids = [*token_ids, toys.eos_id(TABLE)]
    deltas = toys.cut(toys.answer(ids, "stop", logprobs=toys.score(ids) if scored else None), cuts)
    asked = {"logprobs": scored, "top_logprobs": 2 if scored else None, "stop": stop}
    spec = chat_reply_spec({**asked, "return_token_ids": True, "stream": True}, model=toys.MODEL)
    expected = toys.join_chunks(toys.stream_chunks(DERENDERER, spec, deltas, PROMPT))
    client, ticket = Client(waits), Counter()
    chunks = await streamed(spec, DrawnGenerate(deltas, turns), client, ticket)
    assert toys.join_chunks(chunks) == expected
    if not stop:
        assert ticket.num_tokens == len(ids)


async def test_fault_of_derender_ends_the_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[GenerateDelta] = []

    def broken(_: ReplyStream, delta: GenerateDelta) -> None:
        seen.append(delta)
        if len(seen) > 1:  # the first is fed, the next one is offered
            raise RuntimeError("secret detail")

    monkeypatch.setattr(ReplyStream, "plain", broken)
    words = [*b"plain", toys.eos_id(TABLE)]
    deltas = toys.cut(toys.answer(words, "stop"), range(len(words)))
    client, link = Client([]), DrawnGenerate(deltas, [9])
    outlet = sse.Outlet()
    own = flow_of(chat_reply_spec({"stream": True}, model=toys.MODEL), link)
    response = await sse.primed(flows.stream(own, outlet), outlet)
    assert (await client.read(response))["error"] == "internal_error"
    assert client.parts[-2].startswith(b"event: error\n")
    assert b"secret" not in b"".join(client.parts)
    assert link.num_given == 1


async def test_plain_tokens_wake_nobody() -> None:
    words = [*b"plain text", toys.eos_id(TABLE)]
    deltas = toys.cut(toys.answer(words, "stop"), range(len(words)))
    spec = chat_reply_spec({"stream": True}, model=toys.MODEL)
    link = DrawnGenerate(deltas, [9])
    ticket = Counter()
    chunks = await streamed(spec, link, Client([]), ticket)
    assert toys.join_chunks(chunks)[0].text == "plain text"
    assert link.num_given == 2  # the first, which begins the message, and the last
    assert ticket.num_tokens == len(words)
