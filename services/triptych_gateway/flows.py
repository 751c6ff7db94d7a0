"""The path of one OpenAI request: render, then generate per prompt, then derender."""

import contextlib
import functools
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from triptych import sse
from triptych.mailbox import Taker
from triptych.reply import Endpoint, Rendered
from triptych.request_ids import prefixed_id
from triptych.wire import Generated, GenerateDelta, GenerateRequest, join_deltas
from triptych_gateway.links import DerenderLink, GenerateLink, Plain, RenderLink
from triptych_gateway.merge import MergedDeltas, OneStream, merged


@dataclass(frozen=True, slots=True)
class Panels:
    """The three panels that a gateway chains."""

    render: RenderLink
    generate: GenerateLink
    derender: DerenderLink


@dataclass(frozen=True, slots=True)
class Flow:
    """One rendered request on its way; ``reply_id`` names it in the reply and in every log."""

    panels: Panels
    rendered: Rendered
    reply_id: str
    created: int

    @property
    def is_stream(self) -> bool:
        return self.rendered.spec.stream

    @property
    def prompts(self) -> list[list[int]]:
        return [request.token_ids for request in self.rendered.requests]


async def start(panels: Panels, endpoint: Endpoint, body: bytes, request_id: str) -> Flow:
    """Render ``body``; everything that is wrong with a request is said here."""
    rendered = await panels.render.render(endpoint, body, request_id)
    rendered = Rendered(requests=[_seeded(each) for each in rendered.requests], spec=rendered.spec)
    reply_id = prefixed_id("chatcmpl-" if endpoint == "chat" else "cmpl-", request_id)
    return Flow(panels, rendered, reply_id, int(time.time()))


async def whole(flow: Flow) -> bytes:
    """The body of the whole reply."""
    deltas: list[list[GenerateDelta]] = [[] for _ in flow.prompts]
    async with contextlib.aclosing(_generated(flow)) as generated:
        if flow.rendered.spec.stop:
            await _collect_until_stopped(flow, generated, deltas)
        else:
            async for prompt_index, delta in generated:
                deltas[prompt_index].append(delta)
    answers = [_answer(flow, index, deltas[index]) for index in range(len(deltas))]
    return await flow.panels.derender.whole(
        flow.rendered.spec, answers, request_id=flow.reply_id, created=flow.created
    )


async def stream(flow: Flow, outlet: sse.Outlet) -> AsyncGenerator[bytes, None]:
    """SSE frames of the reply; those of plain tokens go to ``outlet`` while this waits for others.

    A frame that goes there wakes no task and passes no generator, which costs as much as it does.
    """
    async with flow.panels.derender.open(
        flow.rendered.spec,
        request_id=flow.reply_id,
        created=flow.created,
        prompts=flow.prompts,
    ) as reply:
        taker = None
        if len(flow.prompts) == 1 and reply.plain is not None:
            taker = functools.partial(_take, reply.plain, outlet)
        async with contextlib.aclosing(_generated(flow, taker)) as generated:
            async for prompt_index, delta in generated:
                fed = await reply.feed(prompt_index, delta)
                if fed.chunks:
                    yield sse.frame(fed.chunks)
                generated.stop(fed.done_prompts)
                if fed.is_done:
                    break
    yield sse.DONE


async def _collect_until_stopped(
    flow: Flow, generated: OneStream | MergedDeltas, deltas: list[list[GenerateDelta]]
) -> None:
    """Collect while derender watches the text for stop strings, so that generate ends with them."""
    watched = msgspec.structs.replace(flow.rendered.spec, logprobs=False, prompt_logprobs=False)
    async with flow.panels.derender.open(
        watched, request_id=flow.reply_id, created=flow.created, prompts=flow.prompts
    ) as reply:
        async for prompt_index, delta in generated:
            deltas[prompt_index].append(delta)
            fed = await reply.feed(prompt_index, _without_logprobs(delta))
            generated.stop(fed.done_prompts)
            if fed.is_done:
                break


def _seeded(request: GenerateRequest) -> GenerateRequest:
    """``request`` with a seed, drawn here where the client gave none.

    Whoever may have to resume a request on another worker must know its seed.
    """
    params = request.sampling_params
    if params.seed is not None:
        return request
    seeded = msgspec.structs.replace(params, seed=secrets.randbits(63))
    return msgspec.structs.replace(request, sampling_params=seeded)


def _generated(flow: Flow, taker: Taker | None = None) -> OneStream | MergedDeltas:
    generate = flow.panels.generate.generate
    return merged([generate(request, taker) for request in flow.rendered.requests])


def _take(plain: Plain, outlet: sse.Outlet, delta: GenerateDelta) -> bool:
    """Send ``delta`` if it is plain and the client reads."""
    if not outlet.is_free or (chunk := plain(delta)) is None:
        return False
    outlet.send_at_once(sse.frame((chunk,)))
    return True


def _answer(flow: Flow, index: int, deltas: list[GenerateDelta]) -> Generated:
    request = flow.rendered.requests[index]
    choices, prompt_logprobs = join_deltas(deltas)
    return Generated(
        request_id=flow.reply_id,
        model=flow.rendered.spec.model,
        created=flow.created,
        prompt_tokens=len(request.token_ids),
        choices=choices,
        prompt_logprobs=prompt_logprobs,
        prompt_token_ids=request.token_ids,
        logprobs_mode=request.sampling_params.logprobs_mode,
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
    )


def _without_logprobs(delta: GenerateDelta) -> GenerateDelta:
    choices = [msgspec.structs.replace(choice, logprobs=None) for choice in delta.choices]
    return GenerateDelta(request_id=delta.request_id, choices=choices)
