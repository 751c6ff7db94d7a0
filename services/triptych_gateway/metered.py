"""The panels as one request uses them, with the time of each hop and the tokens counted."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import Generated, GenerateDelta, GenerateRequest, ModelInfo
from triptych_gateway.flows import Panels
from triptych_gateway.gate import Ticket
from triptych_gateway.links import DerenderLink, GenerateLink, RenderLink, ReplyFeed
from triptych_gateway.metrics import GatewayMetrics

#: Tokens of one prompt's answer that are added to the figures at once: adding costs as much as
#: passing a message on.
_COUNTED_TOGETHER = 32


def metered(panels: Panels, ticket: Ticket, metrics: GatewayMetrics) -> Panels:
    """``panels`` for the request of ``ticket``."""
    return Panels(
        MeteredRender(panels.render, metrics),
        MeteredGenerate(panels.generate, ticket, metrics),
        MeteredDerender(panels.derender, metrics),
    )


class MeteredRender:
    """render, timed."""

    def __init__(self, link: RenderLink, metrics: GatewayMetrics) -> None:
        self._link = link
        self._metrics = metrics
        self.tokenize = link.tokenize
        self.detokenize = link.detokenize
        self.tokenizer_info = link.tokenizer_info

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        start = time.perf_counter()
        rendered = await self._link.render(endpoint, body, request_id)
        self._metrics.hop_answered("render", seconds=time.perf_counter() - start)
        return rendered


class MeteredGenerate:
    """generate, timed, its tokens counted for the request's key."""

    def __init__(self, link: GenerateLink, ticket: Ticket, metrics: GatewayMetrics) -> None:
        self._link = link
        self._ticket = ticket
        self._metrics = metrics
        self._has_begun = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        start = time.perf_counter()
        first_at = last_at = 0.0
        num_tokens = num_counted = num_first = 0
        try:
            async with aclosing(self._link.generate(request)) as deltas:
                async for delta in deltas:
                    for choice in delta.choices:
                        num_tokens += len(choice.token_ids)
                    last_at = time.perf_counter()
                    if not first_at:
                        first_at, num_first = last_at, num_tokens
                        self._begin(last_at, start)
                    if num_tokens - num_counted >= _COUNTED_TOGETHER:
                        self._ticket.count_output(num_tokens - num_counted)
                        num_counted = num_tokens
                    yield delta
        finally:
            self._ticket.count_output(num_tokens - num_counted)
            if num_tokens > num_first:
                num_steps = (num_tokens - num_first) / request.sampling_params.n
                between = (last_at - first_at) / num_steps
                self._metrics.answer_ended(seconds_between=between)

    async def info(self) -> ModelInfo:
        return await self._link.info()

    def _begin(self, now: float, start: float) -> None:
        self._metrics.hop_answered("generate", seconds=now - start)
        if not self._has_begun:
            self._has_begun = True
            self._metrics.first_token_came(seconds=now - self._ticket.came_at)


class MeteredDerender:
    """derender, timed: whole answers, and the first chunk of streams."""

    def __init__(self, link: DerenderLink, metrics: GatewayMetrics) -> None:
        self._link = link
        self._metrics = metrics

    @asynccontextmanager
    async def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AsyncIterator[ReplyFeed]:
        async with self._link.open(
            spec, request_id=request_id, created=created, prompts=prompts
        ) as feed:
            yield _FirstTimed(feed, self._metrics)

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        start = time.perf_counter()
        body = await self._link.whole(spec, answers, request_id=request_id, created=created)
        self._metrics.hop_answered("derender", seconds=time.perf_counter() - start)
        return body


class _FirstTimed:
    """A reply whose first chunk is timed; the others are as they were, at no cost."""

    def __init__(self, reply: ReplyFeed, metrics: GatewayMetrics) -> None:
        self._reply = reply
        self._metrics = metrics
        self.feed = self._first

    async def _first(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        self.feed = self._reply.feed
        start = time.perf_counter()
        fed = await self._reply.feed(prompt_index, delta)
        self._metrics.hop_answered("derender", seconds=time.perf_counter() - start)
        return fed
