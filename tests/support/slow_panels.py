"""Panels on real sockets that take the time a test gives them, and a gateway in front of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio
import httpx
import msgspec

from support.net import http_client, listening
from support.scripted import ScriptedGenerate
from triptych.convert import rendered_to_proto
from triptych.drain import Drain
from triptych.hops import NO_HOPS
from triptych.http import create_app
from triptych.reply import Fed, Rendered, ReplySpec
from triptych.rpc import RpcServer
from triptych.v1 import (
    derender_pb2,
    derender_pb2_grpc,
    generate_pb2,
    generate_pb2_grpc,
    render_pb2,
    render_pb2_grpc,
)
from triptych.wire import GenerateDelta, GenerateRequest, SamplingParams
from triptych_derender.derenderer import Derenderer
from triptych_derender.rpc import DerenderServicer
from triptych_gateway.__main__ import create_fleet_service
from triptych_gateway.settings import GatewaySettings
from triptych_render.renderer import Renderer
from triptych_render.rpc import RenderServicer

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Work:
    """What a panel was asked: ``given_s``, the time that each request was given there."""

    given_s: list[float] = field(default_factory=list)
    num_running: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.contextmanager
    def running(self, given_s: float | None) -> Iterator[None]:
        self.begin(given_s)
        try:
            yield
        finally:
            self.end()

    def begin(self, given_s: float | None) -> None:
        assert given_s is not None, "a hop without a limit"
        self.given_s.append(given_s)
        self.num_running += 1
        self.news.set()

    def end(self) -> None:
        self.num_running -= 1
        self.news.set()

    async def until_idle(self) -> None:
        async with asyncio.timeout(60):
            while self.num_running:
                await self.wait()

    async def wait(self) -> None:
        """Return when a request has come or has ended."""
        self.news.clear()
        await self.news.wait()


class SlowRender(RenderServicer):
    """Renders any chat after ``pause_s``."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(cast("Renderer", None), Drain())
        self.work = Work()
        self._pause_s = pause_s

    async def Session(
        self, request_iterator: AsyncIterator[render_pb2.RenderCommands], context: _Context
    ) -> AsyncIterator[render_pb2.RenderStep]:
        steps: asyncio.Queue[render_pb2.RenderStep] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._take(request_iterator, steps))
            try:
                while True:
                    yield await steps.get()
            finally:
                reading.cancel()

    async def _take(
        self,
        commands: AsyncIterator[render_pb2.RenderCommands],
        steps: asyncio.Queue[render_pb2.RenderStep],
    ) -> None:
        running: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            async for each in commands:
                for submit in each.submits:
                    running[submit.key] = tasks.create_task(self._render(submit, steps))
                for key in each.aborts:
                    running[key].cancel()

    async def _render(
        self, submit: render_pb2.SubmitRender, steps: asyncio.Queue[render_pb2.RenderStep]
    ) -> None:
        with self.work.running(submit.timeout_s):
            await asyncio.sleep(self._pause_s)
        asked = msgspec.json.decode(submit.request.body)
        params = SamplingParams(n=1, seed=1, max_tokens=100)
        generate = GenerateRequest(token_ids=[1], sampling_params=params, request_id="r")
        spec = ReplySpec(endpoint="chat", model="m", stream=asked["stream"])
        response = rendered_to_proto(Rendered(requests=[generate], spec=spec))
        answer = render_pb2.RenderAnswer(key=submit.key, response=response)
        steps.put_nowait(render_pb2.RenderStep(answers=[answer]))

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: _Context
    ) -> render_pb2.TextResponse:
        with self.work.running(context.time_remaining()):
            await asyncio.sleep(self._pause_s)
        return render_pb2.TextResponse(body=b"{}")


class SlowGenerate(ScriptedGenerate):
    """Sends ``count`` ids, one after each ``pause_s``; then the answer is over."""

    def __init__(self, pause_s: float, count: int) -> None:
        super().__init__(list(range(count)), step_s=pause_s)
        self.work = Work()

    async def Session(
        self, request_iterator: AsyncIterator[generate_pb2.GenerateCommands], context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateStep]:
        async for step in super().Session(self._noted(request_iterator), context):
            yield step

    async def _noted(
        self, commands: AsyncIterator[generate_pb2.GenerateCommands]
    ) -> AsyncIterator[generate_pb2.GenerateCommands]:
        async for each in commands:
            for command in each.commands:
                if command.HasField("submit"):
                    self.work.given_s.append(command.submit.timeout_s)
            yield each


class SlowDerender(DerenderServicer):
    """Writes a chunk for a delta at once, or never (``is_silent``); whole replies take for ever."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__(cast("Derenderer", _Writer()), Drain())
        self.work = Work()
        self._is_silent = is_silent

    async def DerenderWhole(
        self, request: derender_pb2.DerenderWholeRequest, context: _Context
    ) -> derender_pb2.DerenderWholeResponse:
        with self.work.running(context.time_remaining()):
            await asyncio.Event().wait()
        return derender_pb2.DerenderWholeResponse()

    async def Session(
        self, request_iterator: AsyncIterator[derender_pb2.DerenderCommands], context: _Context
    ) -> AsyncIterator[derender_pb2.DerenderStep]:
        commands = self._noted(request_iterator)
        if self._is_silent:
            async for _ in commands:
                pass
            return
        async for step in super().Session(commands, context):
            yield step

    async def _noted(
        self, commands: AsyncIterator[derender_pb2.DerenderCommands]
    ) -> AsyncIterator[derender_pb2.DerenderCommands]:
        async for each in commands:
            for reply in each.opens:
                self.work.begin(reply.timeout_s)
            for _ in each.closes:
                self.work.end()
            yield each


class _Writer:
    """A derenderer, and the one stream that it opens."""

    def open(self, *_: object, **__: object) -> "_Writer":
        return self

    def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        is_done = delta.choices[0].finish_reason is not None
        return Fed(chunks=[b"{}"], done_prompts=[prompt_index] if is_done else [], is_done=is_done)


@dataclass(frozen=True, slots=True)
class SlowFleet:
    """A gateway's client, and the panels behind it."""

    client: httpx.AsyncClient
    render: SlowRender
    generate: SlowGenerate
    derender: SlowDerender
    generate_server: grpc.aio.Server

    async def until_idle(self) -> None:
        for panel in (self.render, self.derender):
            await panel.work.until_idle()
        async with asyncio.timeout(60):
            if self.generate.requests:
                await self.generate.ended.wait()


@asynccontextmanager
async def slow_fleet(
    limit_s: float,
    *,
    render_s: float = 0,
    token_s: float = 0,
    num_tokens: int = 1,
    is_derender_silent: bool = False,
) -> AsyncIterator[SlowFleet]:
    """``limit_s`` is the gateway's ``--request-timeout-s``."""
    render = SlowRender(render_s)
    generate = SlowGenerate(token_s, num_tokens)
    derender = SlowDerender(is_silent=is_derender_silent)
    servers = {
        name: RpcServer([f"triptych.v1.{name.title()}Service"])
        for name in ("render", "generate", "derender")
    }
    render_pb2_grpc.add_RenderServiceServicer_to_server(render, servers["render"].server)
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(generate, servers["generate"].server)
    derender_pb2_grpc.add_DerenderServiceServicer_to_server(derender, servers["derender"].server)
    async with AsyncExitStack() as stack:
        targets: dict[str, Any] = {}
        for name, server in servers.items():
            app = create_app(name, model=("m", None))
            service = await stack.enter_async_context(listening(app, server))
            targets[name] = service.addresses[1].removeprefix("grpc://")
        settings = GatewaySettings(
            http_port=0, request_timeout_s=limit_s, probe_every_s=0.1, hang_timeout_s=60, **targets
        )
        service = create_fleet_service(settings, NO_HOPS)
        await stack.enter_async_context(service.background())
        client = await stack.enter_async_context(http_client(service.app))
        yield SlowFleet(client, render, generate, derender, servers["generate"].server)
