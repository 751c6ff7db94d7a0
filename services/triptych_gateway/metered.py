"""The panels as one request uses them, with the time of each hop and the tokens counted."""

import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from triptych.mailbox import Taker
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

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        meter = _AnswerMeter(self._ticket, self._begin)
        take = None if taker is None else functools.partial(meter.take, taker)
        try:
            async with aclosing(self._link.generate(request, take)) as deltas:
                async for delta in deltas:
                    came_at = time.perf_counter()
                    try:  # counted while the delta is on its way
                        yield delta
                    finally:
                        meter.count(delta, came_at)
        finally:
            between = meter.end(request.sampling_params.n)
            if between is not None:
                self._metrics.answer_ended(seconds_between=between)

    async def info(self) -> ModelInfo:
        return await self._link.info()

    def _begin(self, now: float, start: float) -> None:
        self._metrics.hop_answered("generate", seconds=now - start)
        if not self._has_begun:
            self._has_begun = True
            self._metrics.first_token_came(seconds=now - self._ticket.came_at)


class _AnswerMeter:
    """The tokens of one prompt's answer, and when they came.

    ``on_begin``: told when the first came and when the answer was asked for.
    """

    def __init__(self, ticket: Ticket, on_begin: Callable[[float, float], None]) -> None:
        self._ticket = ticket
        self._on_begin = on_begin
        self._start = time.perf_counter()
        self._first_at = self._last_at = 0.0
        self._num_tokens = self._num_counted = self._num_first = 0

    def take(self, taker: Taker, delta: GenerateDelta) -> bool:
        """Whether ``taker`` takes ``delta``, which is counted then."""
        is_taken = taker(delta)
        if is_taken:
            self.count(delta, time.perf_counter())
        return is_taken

    def count(self, delta: GenerateDelta, came_at: float) -> None:
        for choice in delta.choices:
            self._num_tokens += len(choice.token_ids)
        self._last_at = came_at
        if not self._first_at:
            self._first_at, self._num_first = self._last_at, self._num_tokens
            self._on_begin(self._first_at, self._start)
        if self._num_tokens - self._num_counted >= _COUNTED_TOGETHER:
            self._count_output()

    def end(self, num_choices: int) -> float | None:
        """Seconds between two tokens of a choice; None where there was none after the first."""
        self._count_output()
        num_later = self._num_tokens - self._num_first
        if not num_later:
            return None
        return (self._last_at - self._first_at) / (num_later / num_choices)

    def _count_output(self) -> None:
        self._ticket.count_output(self._num_tokens - self._num_counted)
        self._num_counted = self._num_tokens


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
        self.plain = reply.plain
        self._metrics = metrics
        self.feed = self._first

    async def _first(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        self.feed = self._reply.feed
        start = time.perf_counter()
        fed = await self._reply.feed(prompt_index, delta)
        self._metrics.hop_answered("derender", seconds=time.perf_counter() - start)
        return fed
