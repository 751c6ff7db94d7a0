"""Panels that a test scripts: they implement the gateway's links."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from triptych.errors import TriptychError
from triptych.mailbox import Taker
from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.wire import (
    ChoiceDelta,
    Generated,
    GenerateDelta,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
)
from triptych_gateway.links import ReplyFeed

#: What a scripted generate does for one prompt, given its request.
Script = Callable[[GenerateRequest], AsyncGenerator[GenerateDelta, None]]


class FakeRender:
    """Reads ``{"prompts": [[ids]…], "n", "stream", "stop", "seed"}`` instead of OpenAI's fields."""

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        asked = msgspec.json.decode(body)
        n = asked.get("n", 1)
        spec = ReplySpec(
            endpoint=endpoint,
            model="fake",
            n=n,
            num_prompts=len(asked["prompts"]),
            stream=asked.get("stream", False),
            stop=asked.get("stop", []),
        )
        requests = [
            GenerateRequest(
                token_ids=ids,
                sampling_params=SamplingParams(n=n, seed=asked.get("seed")),
                request_id=f"{request_id}-{index}",
            )
            for index, ids in enumerate(asked["prompts"])
        ]
        return Rendered(requests=requests, spec=spec)

    async def tokenize(self, body: bytes) -> bytes:
        return b'{"tokens": []}'

    async def detokenize(self, body: bytes) -> bytes:
        return b'{"prompt": ""}'

    async def tokenizer_info(self) -> bytes:
        return b"{}"


class FakeGenerate:
    """Runs a script per request and notes which requests were closed before their end."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.started = asyncio.Event()
        self.aborted: list[str] = []
        self.abort_seen = asyncio.Event()

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        self.started.set()
        is_done = False
        try:
            async for delta in self._script(request):
                if taker is None or not taker(delta):
                    yield delta
            is_done = True
        except TriptychError:
            is_done = True
            raise
        finally:
            if not is_done:
                self.aborted.append(request.request_id or "")
                self.abort_seen.set()

    async def info(self) -> ModelInfo:
        return ModelInfo(
            model="fake", max_model_len=9, vocab_size=9, dtype="x", device="x", max_logprobs=0
        )


class FakeDerender:
    """A chunk per delta; the id ``STOP`` stops its choice as a stop string would."""

    STOP = 99

    @asynccontextmanager
    async def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AsyncIterator[ReplyFeed]:
        yield _FakeFeed(spec.n, len(prompts))

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        ids = [[choice.token_ids for choice in answer.choices] for answer in answers]
        return msgspec.json.encode({"id": request_id, "ids": ids})


class _FakeFeed:
    def __init__(self, n: int, num_prompts: int) -> None:
        self._open = [set(range(n)) for _ in range(num_prompts)]

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        still_open = self._open[prompt_index]
        for choice in delta.choices:
            if self._ends(choice):
                still_open.discard(choice.index)
        return Fed(
            chunks=[self._chunk(prompt_index, delta)],
            done_prompts=[] if still_open else [prompt_index],
            is_done=not any(self._open),
        )

    def plain(self, delta: GenerateDelta) -> bytes | None:
        return None if any(map(self._ends, delta.choices)) else self._chunk(0, delta)

    def _ends(self, choice: ChoiceDelta) -> bool:
        return choice.finish_reason is not None or FakeDerender.STOP in choice.token_ids

    def _chunk(self, prompt_index: int, delta: GenerateDelta) -> bytes:
        shown = [[prompt_index, choice.index, choice.token_ids] for choice in delta.choices]
        return msgspec.json.encode(shown)


def token(request: GenerateRequest, token_id: int, *, is_last: bool = False) -> GenerateDelta:
    """A delta of one token of the first choice."""
    choice = ChoiceDelta(index=0, token_ids=[token_id], finish_reason="length" if is_last else None)
    return GenerateDelta(request_id=request.request_id or "", choices=[choice])
