"""A generate server without an engine: what a request gets is drawn from its ids."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from triptych.errors import OverloadedError
from triptych.logprobs import pack_logprobs
from triptych.mailbox import Mailbox
from triptych.rpc import RpcServer
from triptych.sessions import SessionKind
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest, SamplingParams
from triptych_generate.rpc import GenerateServicer

#: First ids of requests that end otherwise: refused at once, broken after some tokens, never over.
REFUSED, BROKEN, ENDLESS = 1001, 1002, 1003


class DrawnService:
    """Stands for the generate service. ``aborted``: first ids of requests that did not end."""

    def __init__(self) -> None:
        self.num_running = 0
        self.aborted: list[int] = []
        self.news = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        async with self.running(request) as mailbox:
            while (delta := await mailbox.get()) is not None:
                yield delta

    @asynccontextmanager
    async def running(
        self, request: GenerateRequest, on_news: Callable[[], None] | None = None
    ) -> AsyncIterator[Mailbox]:
        if request.token_ids[0] == REFUSED:
            raise OverloadedError("9 wait, limit is 8", retry_after_s=2)
        choices = range(request.sampling_params.n)
        mailbox = Mailbox(request_id="drawn", choices=choices, on_news=on_news)
        stepping = asyncio.create_task(_step(request, mailbox))
        self.num_running += 1
        self.news.set()
        try:
            yield mailbox
        finally:
            stepping.cancel()
            self.num_running -= 1
            if not mailbox.has_ended:
                self.aborted.append(request.token_ids[0])
            self.news.set()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait for requests to start or end until ``is_true``."""
        async with asyncio.timeout(60):
            while not is_true():
                self.news.clear()
                await self.news.wait()


async def _step(request: GenerateRequest, mailbox: Mailbox) -> None:
    rng = random.Random(request.token_ids[0])
    open_choices = list(range(request.sampling_params.n))
    while open_choices:
        choices = [_drawn_choice(index, rng) for index in open_choices]
        open_choices = [each.index for each in choices if each.finish_reason is None]
        if request.token_ids[0] == BROKEN and rng.random() < 0.2:
            mailbox.fail(OverloadedError("no room left", retry_after_s=3))
        if request.token_ids[0] == ENDLESS:
            choices = [ChoiceDelta(index=0, token_ids=[5])]
            open_choices = [0]
        prompt = pack_logprobs([[], [(7, -0.5, 1)]]) if not mailbox.has_begun else None
        cached = 3 if not mailbox.has_begun else 0
        mailbox.put(
            GenerateDelta(
                request_id="drawn", choices=choices, prompt_logprobs=prompt, cached_tokens=cached
            )
        )
        await asyncio.sleep(rng.choice([0, 0, 0.001]))


def _drawn_choice(index: int, rng: random.Random) -> ChoiceDelta:
    token_id = rng.randrange(300, 400)
    scores = [(token_id, -rng.randrange(64) / 8, 2), (rng.randrange(300), -0.25, 1)]
    is_last = rng.random() < 0.03
    return ChoiceDelta(
        index=index,
        token_ids=[token_id],
        logprobs=pack_logprobs([scores]),
        finish_reason=rng.choice(["stop", "length"]) if is_last else None,
        stop_reason=token_id if is_last and rng.random() < 0.5 else None,
    )


def drawn_request(first_id: int, *, n: int = 1) -> GenerateRequest:
    return GenerateRequest(
        token_ids=[first_id, 7], sampling_params=SamplingParams(n=n, seed=1), request_id="drawn"
    )


def drawn_rpc(service: DrawnService, *, by_grpc: bool = False) -> RpcServer:
    """``by_grpc``: sessions are served by grpc.aio, as those of strangers are."""
    rpc = RpcServer(["triptych.v1.GenerateService"])
    servicer = GenerateServicer(cast(Any, service), rpc.drain)
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(servicer, rpc.server)
    if not by_grpc:
        commands = generate_pb2.GenerateCommands
        rpc.add_sessions(
            SessionKind("triptych.v1.GenerateService", commands, servicer.open_session)
        )
    return rpc
