"""Sessions that send back what comes, which grpc.aio does not know."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from triptych.drain import Drain
from triptych.errors import OverloadedError
from triptych.hops import NO_HOPS, Hops
from triptych.rpc import RpcServer
from triptych.sessions import SessionKind, SessionRequests
from triptych.v1 import render_pb2

SERVICE = "triptych.v1.RenderService"


class Echo:
    """A session that sends every body back; some of them mean something."""

    def __init__(self, drain: Drain, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self.steps: list[bytes] = []
        self.requests = SessionRequests(drain, lambda key, error: self._say(error.message.encode()))

    def apply(self, commands: render_pb2.TextRequest) -> None:
        match commands.body:
            case b"refuse":
                raise OverloadedError("énough, 100 %", param="body", retry_after_s=3)
            case b"break":
                raise RuntimeError("a fault of ours")
            case b"work":
                self.requests.start(1, 0, _endless, request_id="r", trace={})
            case body:
                self._say(body)

    def take_step(self) -> render_pb2.TextResponse | None:
        if not self.steps:
            return None
        if (body := self.steps.pop(0)) == b"break later":
            raise RuntimeError("a fault of ours")
        return render_pb2.TextResponse(body=body)

    def _say(self, body: bytes) -> None:
        self.steps.append(body)
        self._on_news()


async def _endless() -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def serving(hops: Hops = NO_HOPS) -> AsyncIterator[tuple[RpcServer, str]]:
    """A server and its address."""
    rpc = RpcServer([SERVICE])
    kind = SessionKind(SERVICE, render_pb2.TextRequest, lambda on_news: Echo(rpc.drain, on_news))
    rpc.add_sessions(kind)
    port = rpc.bind("127.0.0.1", 0, hops)
    await rpc.start()
    try:
        yield rpc, f"127.0.0.1:{port}"
    finally:
        await rpc.stop(0)
