"""Replies through one derender session, against the same replies as streams of their own."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from triptych.convert import delta_to_proto
from triptych.errors import InvalidRequestError, UnavailableError
from triptych.logprobs import pack_logprobs
from triptych.reply import ReplySpec
from triptych.rpc import RpcServer, open_channel
from triptych.rpc_options import MAX_MESSAGE_BYTES
from triptych.v1 import derender_pb2, derender_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta
from triptych_derender.derenderer import Derenderer
from triptych_derender.rpc import create_derender_rpc
from triptych_gateway.over_grpc import GrpcDerender

pytestmark = pytest.mark.model

PROMPTS = [[1, 2], [3]]
SPEC = ReplySpec(
    endpoint="completions",
    model="smollm2",
    n=2,
    num_prompts=2,
    stream=True,
    include_usage=True,
    logprobs=True,
    top_logprobs=2,
    stop=["the"],
)


@dataclass(slots=True)
class Served:
    rpc: RpcServer
    target: str
    link: GrpcDerender


@pytest.fixture(scope="module")
def derenderer(smollm2_dir: Path) -> Derenderer:
    return Derenderer.from_directory(smollm2_dir, model="smollm2")


@contextlib.asynccontextmanager
async def served(derenderer: Derenderer) -> AsyncIterator[Served]:
    rpc = create_derender_rpc(derenderer)
    target = f"127.0.0.1:{rpc.bind('127.0.0.1', 0)}"
    await rpc.start()
    link = GrpcDerender(target, timeout_s=20)
    try:
        yield Served(rpc, target, link)
    finally:
        await link.close()
        await rpc.stop(0)


def drawn_deltas(seed: int) -> list[tuple[int, GenerateDelta]]:
    """A reply's deltas with their prompts: any number of tokens each, to the end."""
    rng = random.Random(seed)
    left = {(prompt, choice): rng.randrange(1, 30) for prompt in (0, 1) for choice in (0, 1)}
    deltas = []
    while left:
        prompt, choice = rng.choice(sorted(left))
        count = min(left[prompt, choice], rng.randrange(1, 4))
        left[prompt, choice] -= count
        is_last = not left[prompt, choice]
        if is_last:
            del left[prompt, choice]
        ids = [rng.randrange(200, 2000) for _ in range(count)]
        scores = [[(each, -0.5, 1), (each + 1, -1.5, 2)] for each in ids]
        part = ChoiceDelta(
            index=choice,
            token_ids=ids,
            logprobs=pack_logprobs(scores),
            finish_reason="length" if is_last else None,
        )
        deltas.append((prompt, GenerateDelta(request_id="", choices=[part])))
    return deltas


async def by_session(link: GrpcDerender, seed: int, *, leave_after: int = -1) -> list[object]:
    """The answers to the deltas that ``seed`` draws, until the reply is done or is left."""
    answers: list[object] = []
    async with link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as reply:
        for prompt_index, delta in drawn_deltas(seed):
            if len(answers) == leave_after:
                break
            fed = await reply.feed(prompt_index, delta)
            answers.append((fed.chunks, fed.done_prompts, fed.is_done))
            await asyncio.sleep(0)
    return answers


async def by_stream(target: str, seed: int) -> list[object]:
    start = derender_pb2.DerenderStart(
        reply_spec=msgspec.json.encode(SPEC),
        request_id="r",
        created=1,
        prompts=[derender_pb2.Prompt(token_ids=ids) for ids in PROMPTS],
    )
    answers: list[object] = []
    async with open_channel(target) as channel:
        call = derender_pb2_grpc.DerenderServiceStub(channel).Derender(timeout=20)
        await call.write(derender_pb2.DerenderCommand(start=start))
        for prompt_index, delta in drawn_deltas(seed):
            message = derender_pb2.DerenderDelta(
                prompt_index=prompt_index, delta=delta_to_proto(delta)
            )
            await call.write(derender_pb2.DerenderCommand(delta=message))
            answer = await call.read()
            assert isinstance(answer, derender_pb2.DerenderChunks)
            answers.append((list(answer.chunks), list(answer.done_prompts), answer.is_done))
    return answers


async def test_replies_are_those_of_streams_of_their_own(derenderer: Derenderer) -> None:
    async with served(derenderer) as server:
        wanted = [await by_stream(server.target, seed) for seed in range(12)]
        got = await asyncio.gather(
            *(
                by_session(server.link, seed, leave_after=seed if seed % 3 == 0 else -1)
                for seed in range(12)
            )
        )
        for seed, (expected, heard) in enumerate(zip(wanted, got, strict=True)):
            assert heard == (expected[:seed] if seed % 3 == 0 else expected)
        await server.rpc.drain.until_idle()  # replies that were left are closed there


async def test_failure_of_one_reply_leaves_the_others(derenderer: Derenderer) -> None:
    async with served(derenderer) as server:
        other = asyncio.create_task(by_session(server.link, 1))
        wrong = msgspec.structs.replace(SPEC, tokenizer_fingerprint="another")
        async with server.link.open(wrong, request_id="r", created=1, prompts=PROMPTS) as reply:
            with pytest.raises(InvalidRequestError, match="rendered with tokenizer another"):
                await reply.feed(*drawn_deltas(1)[0])
        async with server.link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as reply:
            with pytest.raises(InvalidRequestError, match="prompt_index is 2"):
                await reply.feed(2, drawn_deltas(1)[0][1])
            with pytest.raises(InvalidRequestError, match="prompt_index is 2"):
                await reply.feed(0, drawn_deltas(1)[0][1])
        assert await other == await by_stream(server.target, 1)


class LongReply:
    """A derenderer whose whole replies do not fit a message."""

    def whole(self, *_: object, **__: object) -> bytes:
        return bytes(MAX_MESSAGE_BYTES)


@pytest.mark.parametrize(("model", "what"), [("m", "reply"), ("m" * MAX_MESSAGE_BYTES, "answer")])
async def test_whole_reply_that_fits_no_message_is_refused(model: str, what: str) -> None:
    """As overload it would be made again and again, by derender and by the client."""
    spec = msgspec.structs.replace(SPEC, model=model)
    async with served(LongReply()) as server:  # type: ignore[arg-type]  # no more of it is used
        with pytest.raises(InvalidRequestError, match=f"the whole {what} has .* limit is 67,108,8"):
            await server.link.whole(spec, [], request_id="r", created=1)


async def test_delta_that_cannot_be_sent_fails_at_once_and_no_later_reply(
    derenderer: Derenderer,
) -> None:
    unsendable = ChoiceDelta(index=0, token_ids=[5], logprobs=pack_logprobs([[(5, -0.5, -1)]]))
    async with served(derenderer) as server:
        async with server.link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as reply:
            with pytest.raises(UnavailableError, match=r"the session with derender at .* broke"):
                await reply.feed(0, GenerateDelta(request_id="", choices=[unsendable]))
        assert await by_session(server.link, 1) == await by_stream(server.target, 1)


async def test_session_that_breaks_fails_its_replies(derenderer: Derenderer) -> None:
    async with (
        served(derenderer) as server,
        server.link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as reply,
    ):
        await reply.feed(*drawn_deltas(1)[0])
        await server.rpc.stop(0)
        with pytest.raises(UnavailableError):
            await reply.feed(*drawn_deltas(1)[1])


async def test_drain_ends_replies_with_503(derenderer: Derenderer) -> None:
    async with served(derenderer) as server:
        async with server.link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as reply:
            await reply.feed(*drawn_deltas(1)[0])
            await server.rpc.begin_drain()
            async with server.link.open(SPEC, request_id="r", created=1, prompts=PROMPTS) as late:
                with pytest.raises(UnavailableError, match="the server is stopping"):
                    await late.feed(*drawn_deltas(1)[0])
            await reply.feed(*drawn_deltas(1)[1])
            assert server.rpc.drain.cut_off() == 1
            await server.rpc.drain.until_idle()
            with pytest.raises(UnavailableError, match="the server is stopping"):
                await reply.feed(*drawn_deltas(1)[2])
        async with asyncio.timeout(10):
            await server.rpc.stop(60)
