"""Clients that leave, and servers that have no room, break or come back: on real sockets."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.both_clients import HTTP, ask, ask_generate, parts
from support.net import listening
from support.scripted import (
    Scripted,
    ScriptedGenerate,
    TextPanels,
    encoded,
    scripted_stack,
    text_panels,
)
from support.stack import free_ports
from triptych.client import AsyncClient, AsyncGenerateClient, Client, GenerateClient, Retries
from triptych.drain import Drain
from triptych.errors import (
    ClientGoneError,
    DeadlineError,
    InternalError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.http import create_app
from triptych.rpc import RpcServer
from triptych.rpc_edge import RpcEdge
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import GenerateDelta, GenerateRequest, SamplingParams
from triptych_gateway.gate import Room

pytestmark = pytest.mark.model

REQUEST = GenerateRequest(token_ids=[1, 2], sampling_params=SamplingParams(max_tokens=9))
NEVER = Retries(limit=0)
IDS = [504, 3575, 282]


@pytest.fixture(scope="module")
def texts(smollm2_dir: Path) -> TextPanels:
    return text_panels(smollm2_dir, "none")


@pytest.mark.parametrize("num_read", [1, 9])
async def test_leaving_a_stream_anywhere_ends_the_answer_at_generate(
    texts: TextPanels, num_read: int
) -> None:
    async with endless_stack(texts) as scripted, AsyncClient(scripted.gateway) as client:
        for chunks in (client.stream_chat("Where?"), client.stream_complete("Where?")):
            scripted.generate.aborted.clear()
            async with chunks as stream:
                read = [await anext(stream) for _ in range(num_read)]
            assert len(read) == num_read
            await asyncio.wait_for(scripted.generate.aborted.wait(), 20)


@pytest.mark.parametrize("num_read", [1, 9])
async def test_leaving_a_blocking_stream_anywhere_ends_the_answer_at_generate(
    texts: TextPanels, num_read: int
) -> None:
    def read_some(client: Client) -> int:
        with client.stream_chat("Where?") as stream:
            return len([next(stream) for _ in range(num_read)])

    async with endless_stack(texts) as scripted:
        with Client(scripted.gateway) as client:
            assert await asyncio.to_thread(read_some, client) == num_read
            await asyncio.wait_for(scripted.generate.aborted.wait(), 20)


async def test_cancelling_a_task_ends_its_answer_and_leaves_the_client_usable(
    texts: TextPanels,
) -> None:
    async with endless_stack(texts) as scripted, AsyncClient(scripted.gateway) as client:
        task = asyncio.create_task(client.chat("Where?"))
        await asyncio.wait_for(scripted.generate.begun.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(scripted.generate.aborted.wait(), 20)
        assert [model.id for model in await client.models()] == ["scripted"]


@pytest.mark.parametrize("num_read", [1, 5])
async def test_leaving_a_grpc_stream_ends_the_answer_at_generate(num_read: int) -> None:
    def read_some(target: str) -> int:
        with GenerateClient(target) as client, client.stream(REQUEST) as stream:
            return len([next(stream) for _ in range(num_read)])

    servicer = ScriptedGenerate([5, 6], finish_reason=None)
    async with generate_server(servicer) as target:
        assert await asyncio.to_thread(read_some, target) == num_read
        await asyncio.wait_for(servicer.aborted.wait(), 20)
        servicer.aborted.clear()
        async with AsyncGenerateClient(target) as client, client.stream(REQUEST) as stream:
            assert len([await anext(stream) for _ in range(num_read)]) == num_read
        await asyncio.wait_for(servicer.aborted.wait(), 20)


@pytest.mark.parametrize("kind", [GenerateClient, AsyncGenerateClient])
async def test_closing_a_client_ends_its_streams_with_an_error(
    kind: type[GenerateClient | AsyncGenerateClient],
) -> None:
    async with generate_server(ScriptedGenerate(IDS, finish_reason=None)) as target:
        client = kind(target)
        begun = threading.Event()
        reading = asyncio.create_task(read_all(client, begun))
        await asyncio.to_thread(begun.wait, 20)
        if isinstance(client, AsyncGenerateClient):
            await client.aclose()
        else:
            client.close()
        with pytest.raises(ClientGoneError):
            await reading


async def read_all(client: GenerateClient | AsyncGenerateClient, begun: threading.Event) -> None:
    if isinstance(client, AsyncGenerateClient):
        async for _ in client.stream(REQUEST):
            begun.set()
    else:
        blocking = client

        def read() -> None:
            for _ in blocking.stream(REQUEST):
                begun.set()

        await asyncio.to_thread(read)


async def test_gateway_without_room_is_asked_again_until_it_has_some(texts: TextPanels) -> None:
    """The second request is refused with a 429, waits as it was told, and is served."""
    async with (
        endless_stack(texts, room=Room(requests=1)) as scripted,
        AsyncClient(scripted.gateway) as client,
        AsyncClient(scripted.gateway, retries=NEVER) as hasty,
    ):
        holding = client.stream_chat("Where?")
        await anext(holding)
        with pytest.raises(OverloadedError) as refused:
            await hasty.complete("Where?", max_tokens=1)
        assert refused.value.retry_after_s == 1
        late = client.stream_chat("Where?")
        asking = asyncio.create_task(anext(late))
        await asyncio.sleep(0)
        await holding.aclose()
        assert (await asyncio.wait_for(asking, 60)).choices
        await late.aclose()


@pytest.mark.parametrize("kind", HTTP)
async def test_worker_that_is_gone_for_a_moment_is_a_503_and_tried_again(
    texts: TextPanels, kind: str
) -> None:
    generate = FailingGenerate(UnavailableError("gone", retry_after_s=1), num_failures=1)
    async with scripted_stack(texts, generate) as scripted:
        url = scripted.gateway
        reply = await asyncio.to_thread(ask, kind, url, lambda c: c.chat("Where?"))
        assert reply.choices[0].finish_reason == "stop"
        assert len(generate.requests) == 2
        generate.num_failures = 1
        with pytest.raises(UnavailableError, match="gone"):
            await asyncio.to_thread(ask, kind, url, lambda c: c.chat("Where?"), retries=NEVER)


@pytest.mark.parametrize("kind", HTTP)
async def test_stream_that_breaks_is_not_begun_again(texts: TextPanels, kind: str) -> None:
    error = UnavailableError("gone", retry_after_s=0)
    generate = FailingGenerate(error, num_failures=9, at_token=2)
    async with scripted_stack(texts, generate) as scripted:
        with pytest.raises(UnavailableError, match="gone"):
            await asyncio.to_thread(
                parts, kind, scripted.gateway, lambda c: c.stream_chat("Where?")
            )
    assert len(generate.requests) == 1


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize("error", [OverloadedError, UnavailableError])
async def test_busy_worker_is_asked_again_over_grpc(kind: str, error: type[TriptychError]) -> None:
    generate = FailingGenerate(error("busy", retry_after_s=0), num_failures=2)
    async with generate_server(generate) as target:
        answer = await asyncio.to_thread(ask_generate, kind, target, lambda c: c.generate(REQUEST))
        assert answer.choices[0].token_ids == IDS
        assert len(generate.requests) == 3
        generate.num_failures = 9
        with pytest.raises(error, match="busy"):
            await asyncio.to_thread(
                ask_generate, kind, target, lambda c: c.generate(REQUEST), retries=Retries(limit=1)
            )
        assert len(generate.requests) == 5
        generate.num_failures = 2
        info = await asyncio.to_thread(ask_generate, kind, target, lambda c: c.info())
    assert (info.model, generate.num_failures) == ("scripted", 0)


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize(
    ("error", "at_token"),
    [(UnavailableError("gone"), 2), (OverloadedError("full"), 1), (InternalError("broken"), 0)],
)
async def test_other_failures_over_grpc_are_raised_at_once(
    kind: str, error: TriptychError, at_token: int
) -> None:
    generate = FailingGenerate(error, num_failures=9, at_token=at_token)
    async with generate_server(generate) as target:
        with pytest.raises(type(error), match=error.message):
            await asyncio.to_thread(ask_generate, kind, target, lambda c: c.generate(REQUEST))
    assert len(generate.requests) == 1


@pytest.mark.parametrize("kind", HTTP)
async def test_worker_that_does_not_answer_is_given_up(kind: str) -> None:
    async with generate_server(ScriptedGenerate(IDS, finish_reason=None)) as target:
        with pytest.raises(DeadlineError):
            await asyncio.to_thread(
                ask_generate, kind, target, lambda c: c.generate(REQUEST), timeout_s=0.3
            )


@pytest.mark.parametrize("kind", HTTP)
def test_worker_that_is_not_there_is_unavailable(kind: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match="is not reachable"):
        ask_generate(kind, f"127.0.0.1:{port}", lambda c: c.info(), retries=NEVER)


class FailingGenerate(ScriptedGenerate):
    """Fails its next ``num_failures`` requests with ``error``, before token ``at_token``."""

    def __init__(self, error: TriptychError, *, num_failures: int, at_token: int = 0) -> None:
        super().__init__(IDS)
        self._error = error
        self._at_token = at_token
        self.num_failures = num_failures

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[generate_pb2.GenerateDelta]:
        async with RpcEdge(context, Drain()):
            async for delta in super().Generate(request, context):
                yield delta

    async def GetInfo(
        self, request: generate_pb2.GetInfoRequest, context: Any
    ) -> generate_pb2.GetInfoResponse:
        async with RpcEdge(context, Drain()):
            if self.num_failures:
                self.num_failures -= 1
                raise self._error
            return await super().GetInfo(request, context)

    def _delta(self, asked: GenerateRequest, position: int) -> GenerateDelta:
        if self.num_failures and position == self._at_token:
            self.num_failures -= 1
            raise self._error
        return super()._delta(asked, position)


@contextlib.asynccontextmanager
async def endless_stack(texts: TextPanels, *, room: Room | None = None) -> AsyncIterator[Scripted]:
    """A stack whose answers never end by themselves."""
    ids = encoded(texts.model_dir, " Paris is in France")
    generate = ScriptedGenerate(ids, finish_reason=None)
    async with scripted_stack(texts, generate, room=room) as scripted:
        yield scripted


@contextlib.asynccontextmanager
async def generate_server(servicer: ScriptedGenerate) -> AsyncIterator[str]:
    """The gRPC address of a scripted worker."""
    rpc = RpcServer(["triptych.v1.GenerateService"])
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(servicer, rpc.server)
    app = create_app("scripted", model=("scripted", None))
    async with listening(app, rpc) as service:
        yield service.addresses[1].removeprefix("grpc://")
