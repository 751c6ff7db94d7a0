"""Requests through one render session, against the same requests as calls of their own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from support.call_metrics import num_ended
from support.stack import free_ports
from triptych.convert import rendered_from_proto
from triptych.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    TriptychError,
    UnavailableError,
)
from triptych.reply import Endpoint, Rendered
from triptych.rpc import RpcErrors, RpcServer, open_channel
from triptych.v1 import generate_pb2, render_pb2, render_pb2_grpc
from triptych_gateway.over_grpc import GrpcRender
from triptych_gateway.render_session import RenderSession
from triptych_gateway.session_call import session_door
from triptych_render.renderer import Renderer
from triptych_render.rpc import create_render_rpc

pytestmark = pytest.mark.model

_HELLO = [{"role": "user", "content": "Hello."}]
_LONG = [{"role": "user", "content": "word " * 3000}]
#: Sound and broken requests, small ones and one that is rendered in a thread.
BODIES: list[tuple[Endpoint, bytes]] = [
    ("chat", msgspec.json.encode({"messages": _HELLO, "top_logprobs": 2, "logprobs": True})),
    ("chat", msgspec.json.encode({"messages": _LONG, "stream": True})),
    ("chat", b"{"),
    ("chat", msgspec.json.encode({"messages": _HELLO, "temperature": -1})),
    ("chat", msgspec.json.encode({"messages": _HELLO, "model": "another"})),
    ("completions", msgspec.json.encode({"prompt": ["a b", "c"], "seed": 3})),
    ("completions", msgspec.json.encode({"messages": _HELLO})),
]


@dataclass(slots=True)
class Served:
    rpc: RpcServer
    target: str
    link: GrpcRender


@pytest.fixture(scope="module")
def renderer(smollm2_dir: Path) -> Renderer:
    return Renderer.from_directory(smollm2_dir, model="smollm2", max_model_len=8192)


@contextlib.asynccontextmanager
async def served(renderer: Renderer, port: int = 0) -> AsyncIterator[Served]:
    rpc = create_render_rpc(renderer)
    target = f"127.0.0.1:{rpc.bind('127.0.0.1', port)}"
    await rpc.start()
    link = GrpcRender(target)
    try:
        yield Served(rpc, target, link)
    finally:
        await link.close()
        await rpc.stop(0)


Outcome = Rendered | tuple[type[TriptychError], str, str | None]


async def by_session(link: GrpcRender, endpoint: Endpoint, body: bytes) -> Outcome:
    try:
        return await link.render(endpoint, body, "r")
    except TriptychError as error:
        return type(error), error.message, error.param


async def by_call(target: str, endpoint: Endpoint, body: bytes) -> Outcome:
    async with open_channel(target) as channel:
        stub = render_pb2_grpc.RenderServiceStub(channel)
        call = stub.RenderChat if endpoint == "chat" else stub.RenderCompletion
        try:
            async with RpcErrors("render"):
                request = render_pb2.RenderRequest(body=body, request_id="r")
                return rendered_from_proto(await call(request))
        except TriptychError as error:
            return type(error), error.message, error.param


async def test_answers_are_those_of_calls_of_their_own(renderer: Renderer) -> None:
    async with served(renderer) as server:
        wanted = [await by_call(server.target, *each) for each in BODIES]
        got = await asyncio.gather(*(by_session(server.link, *each) for each in BODIES * 3))
        assert got == wanted * 3
        are_sound = [isinstance(each, Rendered) for each in wanted]
        assert are_sound == [True, True, False, False, False, True, False]
        await server.rpc.drain.until_idle()
        assert num_ended(server.rpc.metrics, "Session") == 3 * len(BODIES)


async def test_draining_render_refuses_and_ends_its_sessions(renderer: Renderer) -> None:
    async with served(renderer) as server:
        await server.link.render(*BODIES[0], "r")
        await server.rpc.begin_drain()
        with pytest.raises(UnavailableError):
            await server.link.render(*BODIES[0], "r")


@pytest.mark.parametrize("prompt", ["Hi.", "word " * 3000], ids=["at once", "in a thread"])
async def test_fault_at_render_fails_one_request_alone(
    renderer: Renderer,
    prompt: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(renderer, "render_completion", fail)
    body = msgspec.json.encode({"prompt": prompt})
    async with served(renderer) as server:
        failing = asyncio.create_task(by_session(server.link, "completions", body))
        assert isinstance(await server.link.render(*BODIES[0], "r"), Rendered)
        assert await failing == (InternalError, "internal error; see the server's log", None)
        assert "a fault of ours" in caplog.text


async def test_session_opens_again_after_render_was_gone(renderer: Renderer) -> None:
    async with served(renderer, *free_ports(1)) as server:
        before = await server.link.render(*BODIES[0], "r")
        await server.rpc.stop(0)
        with pytest.raises(UnavailableError):
            await server.link.render(*BODIES[0], "r")
        rpc = create_render_rpc(renderer)
        rpc.bind("127.0.0.1", int(server.target.rpartition(":")[2]))
        await rpc.start()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(UnavailableError):
                    assert await server.link.render(*BODIES[0], "r") == before
                    break
        await rpc.stop(0)


Commands = asyncio.Queue[render_pb2.RenderCommands]


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[tuple[Commands, RenderSession]]:
    """A session with a render that takes commands and answers none."""
    commands = Commands()

    async def take(
        requests: AsyncIterator[render_pb2.RenderCommands], context: object
    ) -> AsyncIterator[render_pb2.RenderStep]:
        async for each in requests:
            commands.put_nowait(each)
        return
        yield

    handler = grpc.stream_stream_rpc_method_handler(
        take,
        request_deserializer=render_pb2.RenderCommands.FromString,
        response_serializer=render_pb2.RenderStep.SerializeToString,
    )
    name = "triptych.v1.RenderService"
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"Session": handler}),)
    )
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    session = RenderSession(session_door("render", target, "RenderService"))
    yield commands, session
    session.close()
    await server.stop(0)


async def test_request_that_is_left_is_aborted() -> None:
    async with silent() as (commands, session):
        left = asyncio.create_task(session.render("chat", b"{}", "r", timeout_s=20))
        (submit,) = (await commands.get()).submits
        left.cancel()
        assert list((await commands.get()).aborts) == [submit.key]


async def test_answer_that_does_not_come_is_a_deadline() -> None:
    async with silent() as (commands, session):
        with pytest.raises(DeadlineError):
            await session.render("chat", b"{}", "r", timeout_s=0.05)
        assert (await commands.get()).submits[0].timeout_s == 0.05


@pytest.mark.parametrize("second", [BODIES[1][1], BODIES[0][1]], ids=["in a thread", "at once"])
async def test_key_that_is_in_use_is_refused(renderer: Renderer, second: bytes) -> None:
    submits = [
        render_pb2.SubmitRender(key=7, request=render_pb2.RenderRequest(body=body))
        for body in (BODIES[1][1], second)
    ]
    async with served(renderer) as server, open_channel(server.target) as channel:
        call = render_pb2_grpc.RenderServiceStub(channel).Session()
        await call.write(render_pb2.RenderCommands(submits=submits))
        errors: list[generate_pb2.RequestError] = []
        answers: list[render_pb2.RenderAnswer] = []
        while not (errors and answers):
            step = await call.read()
            assert isinstance(step, render_pb2.RenderStep)
            errors += step.errors
            answers += step.answers
        assert (answers[0].key, errors[0].key) == (7, 7)
        assert errors[0].grpc_code == InvalidRequestError.grpc_code
