"""A server that stops drains first: over real sockets, with a door of either kind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
import httpx
import pytest

from triptych.drain import Drain
from triptych.errors import SetupError
from triptych.http import create_app
from triptych.rpc import RpcServer, open_channel
from triptych.rpc_edge import RpcEdge
from triptych.serving import Service, StopSignals, running, serve
from triptych.settings import ServiceSettings
from triptych.v1 import render_pb2, render_pb2_grpc

if TYPE_CHECKING:
    from triptych.v1.render_pb2_grpc import RenderServiceAsyncStub as Stub

BODY = b"x"


class Work:
    """Calls at both doors wait here until the test lets them end."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self) -> None:
        self.num_begun += 1
        self.begun.set()
        await self.may_end.wait()


class Servicer(render_pb2_grpc.RenderServiceServicer):
    def __init__(self, work: Callable[[], Awaitable[None]], drain: Drain) -> None:
        self._work = work
        self._drain = drain

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: object
    ) -> render_pb2.TextResponse:
        async with RpcEdge(context, self._drain):  # type: ignore[arg-type]  # grpc's own class
            await self._work()
        return render_pb2.TextResponse(body=request.body)


@asynccontextmanager
async def stopping_server(
    work: Work, signals: StopSignals, *, drain_timeout_s: float = 60
) -> AsyncIterator[tuple[Service, httpx.AsyncClient, "Stub"]]:
    """A service that serves until ``signals``; at the end it must have ended by itself."""
    app = create_app("test", model=("m", None))

    @app.post("/work")
    async def do_work() -> None:
        await work()

    rpc = RpcServer(["triptych.v1.RenderService"])
    servicer = Servicer(work, rpc.drain)  # type: ignore[abstract]  # Tokenize alone is called
    render_pb2_grpc.add_RenderServiceServicer_to_server(servicer, rpc.server)
    settings = ServiceSettings(http_port=0, drain_timeout_s=drain_timeout_s)
    service = Service(name="test", app=app, settings=settings, rpc=rpc)
    is_ready = asyncio.Event()
    serving = asyncio.create_task(serve([service], signals=signals, on_ready=is_ready.set))
    await is_ready.wait()
    http_address, grpc_address = service.addresses
    async with (
        httpx.AsyncClient(base_url=http_address, timeout=20) as client,
        open_channel(grpc_address.removeprefix("grpc://")) as channel,
    ):
        yield service, client, render_pb2_grpc.RenderServiceStub(channel)
        await asyncio.wait_for(serving, 20)


async def begin_both(
    work: Work, client: httpx.AsyncClient, stub: "Stub"
) -> tuple[asyncio.Task[httpx.Response], asyncio.Task[render_pb2.TextResponse]]:
    over_http = asyncio.create_task(client.post("/work"))
    over_grpc = asyncio.create_task(call(stub))
    while work.num_begun < 2:
        work.begun.clear()
        await work.begun.wait()
    return over_http, over_grpc


async def call(stub: "Stub") -> render_pb2.TextResponse:
    answer = await stub.Tokenize(render_pb2.TextRequest(body=BODY), timeout=20)
    assert isinstance(answer, render_pb2.TextResponse)
    return answer


async def refused(client: httpx.AsyncClient, stub: "Stub") -> None:
    answer = await client.post("/work")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(stub)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_drain_refuses_new_work_and_waits_for_what_runs() -> None:
    work, signals = Work(), StopSignals()
    async with stopping_server(work, signals) as (_, client, stub):
        over_http, over_grpc = await begin_both(work, client, stub)
        assert (await client.get("/ready")).status_code == 200
        signals.drain.set()
        while (await client.get("/ready")).status_code == 200:
            pass
        assert (await client.get("/v1/models")).status_code == 200
        await refused(client, stub)
        assert not over_http.done()
        work.may_end.set()
        assert (await over_http).status_code == 200
        assert (await over_grpc).body == BODY


@pytest.mark.parametrize("is_second_signal", [False, True])
async def test_end_of_the_drain_cuts_off_with_unavailable(is_second_signal: bool) -> None:
    work, signals = Work(), StopSignals()
    timeout_s = 60 if is_second_signal else 0.1
    async with stopping_server(work, signals, drain_timeout_s=timeout_s) as (_, client, stub):
        over_http, over_grpc = await begin_both(work, client, stub)
        signals.drain.set()
        if is_second_signal:
            signals.now.set()
        answer = await over_http
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping") as error:
            await over_grpc
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_idle_connections_outlive_those_in_a_proxys_pool() -> None:
    app = create_app("test", model=("m", None))
    async with running(Service(name="test", app=app, settings=ServiceSettings())) as listener:
        assert listener._http.config.timeout_keep_alive > 60


async def test_service_that_died_ends_the_server_with_an_error() -> None:
    work, signals = Work(), StopSignals()
    with pytest.raises(SetupError, match="test cannot go on"):
        async with stopping_server(work, signals) as (service, *_):
            service.died.set()


async def test_call_that_its_client_cancels_is_no_work_any_more() -> None:
    work, signals = Work(), StopSignals()
    async with stopping_server(work, signals) as (_, client, stub):
        over_http, over_grpc = await begin_both(work, client, stub)
        over_http.cancel()
        over_grpc.cancel()
        await asyncio.gather(over_http, over_grpc, return_exceptions=True)
        work.may_end.set()  # HTTP work that does not look at its client runs to its end
        signals.drain.set()
