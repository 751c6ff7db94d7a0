"""render and derender over several replicas that fail: the same answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_fleet import FAST, Directory, unreachable, until_state
from triptych.errors import InternalError, InvalidRequestError, TriptychError, UnavailableError
from triptych.reply import Endpoint, Fed, Rendered, ReplySpec
from triptych.structured import make_vocabulary
from triptych.wire import ChoiceDelta, Generated, GenerateDelta, Vocabulary
from triptych_gateway.attempts import NO_PATIENCE, Patience
from triptych_gateway.failover_text import Derender, FailoverDerender, FailoverRender
from triptych_gateway.links import ReplyFeed
from triptych_gateway.replica import Connection
from triptych_gateway.replicas import ReplicaSet

SPEC = ReplySpec(endpoint="chat", model="m")


@dataclass(slots=True)
class Replica:
    """``errors``: one for each call from the first on, None for a good answer; then all are good.

    A stream counts each of its feeds as a call. ``word`` is what it writes into chunks.
    """

    name: str
    errors: list[TriptychError | None] = field(default_factory=list)
    word: str = "x"
    hangs: bool = False
    probe_error: TriptychError | None = None
    num_calls: int = 0

    async def called(self) -> None:
        self.num_calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def probe(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.probe_error is not None:
            raise self.probe_error

    async def close(self) -> None:
        await asyncio.sleep(0)


@dataclass(slots=True)
class FakeRender:
    replica: Replica

    async def render(self, endpoint: Endpoint, body: bytes, request_id: str) -> Rendered:
        await self.replica.called()
        return Rendered(requests=[], spec=SPEC)

    async def tokenize(self, body: bytes) -> bytes:
        await self.replica.called()
        return body

    async def detokenize(self, body: bytes) -> bytes:
        return await self.tokenize(body)

    async def tokenizer_info(self) -> bytes:
        return await self.tokenize(b"{}")


@dataclass(slots=True)
class FakeDerender:
    replica: Replica

    @asynccontextmanager
    async def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: list[list[int]]
    ) -> AsyncIterator[ReplyFeed]:
        yield FakeFeed(self.replica)

    async def whole(
        self, spec: ReplySpec, answers: list[Generated], *, request_id: str, created: int
    ) -> bytes:
        await self.replica.called()
        return b"whole"

    async def vocabulary(self) -> Vocabulary:
        await self.replica.called()
        return make_vocabulary("f", [b"a"])


@dataclass(slots=True)
class FakeFeed:
    """A chunk for every second id: the number of ids so far, and their sum."""

    replica: Replica
    ids: list[int] = field(default_factory=list)
    plain: None = None

    async def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        await self.replica.called()
        self.ids += delta.choices[0].token_ids
        is_due = len(self.ids) % 2 == 0
        chunk = f"{self.replica.word} {len(self.ids)} {sum(self.ids)}".encode()
        return Fed(chunks=[chunk] if is_due else [], done_prompts=[], is_done=False)


@asynccontextmanager
async def watched(link: Any, *replicas: Replica) -> AsyncIterator[ReplicaSet[Any]]:
    by_name = {replica.name: replica for replica in replicas}

    def connect(address: str) -> Connection[Any]:
        replica = by_name[address]
        return Connection(link(replica), replica.probe, replica.close)

    found: ReplicaSet[Any] = ReplicaSet(
        "panel", ["x:1"], connect=connect, options=FAST, find=Directory(*by_name).find
    )
    async with found.watched():
        yield found
        assert [each.outstanding for each in found.replicas] == [0] * len(replicas)


def delta(token_id: int) -> GenerateDelta:
    return GenerateDelta(request_id="r", choices=[ChoiceDelta(index=0, token_ids=[token_id])])


async def written(derender: FailoverDerender, token_ids: list[int]) -> list[bytes]:
    chunks = []
    async with derender.open(SPEC, request_id="r", created=1, prompts=[[1]]) as reply:
        for token_id in token_ids:
            chunks += (await reply.feed(0, delta(token_id))).chunks
    return chunks


def derender_of(replicas: ReplicaSet[Derender], take_over_s: float = 5) -> FailoverDerender:
    return FailoverDerender(replicas, Patience(0, take_over_s))


errors = st.lists(st.sampled_from([None, None, None, unreachable()]), max_size=20)


@given(errors=st.tuples(errors, errors, st.just([])), ids=st.lists(st.integers(0, 99), max_size=12))
@settings(max_examples=60)
async def test_stream_that_breaks_anywhere_is_the_undisturbed_one(
    errors: tuple[list[TriptychError | None], ...], ids: list[int]
) -> None:
    replicas = [Replica(str(index), errors=list(each)) for index, each in enumerate(errors)]
    async with watched(FakeDerender, Replica("whole")) as found:
        expected = await written(derender_of(found), ids)
    async with watched(FakeDerender, *replicas) as found:
        try:
            assert await written(derender_of(found), ids) == expected
        except UnavailableError:  # four failures in a row without a chunk
            assert sum(each.num_calls for each in replicas) >= 4


async def test_derender_that_hangs_is_left() -> None:
    first, second = Replica("a"), Replica("b", probe_error=unreachable())
    async with watched(FakeDerender, first, second) as found:
        await until_state(found, up=1, down=1)
        async with derender_of(found).open(SPEC, request_id="r", created=1, prompts=[[1]]) as reply:
            chunks = [
                *(await reply.feed(0, delta(1))).chunks,
                *(await reply.feed(0, delta(2))).chunks,
            ]
            first.hangs, second.probe_error = True, None
            chunks += (await reply.feed(0, delta(3))).chunks
            chunks += (await reply.feed(0, delta(4))).chunks
        assert found.num_resumes == 1
    assert chunks == [b"x 2 3", b"x 4 10"]
    assert second.num_calls == 4


async def test_replica_that_writes_something_else_does_not_go_on() -> None:
    first, second = Replica("a"), Replica("b", word="y", probe_error=unreachable())
    async with watched(FakeDerender, first, second) as found:
        await until_state(found, up=1, down=1)
        async with derender_of(found, 0.3).open(
            SPEC, request_id="r", created=1, prompts=[[1]]
        ) as reply:
            for token_id in (1, 2):
                await reply.feed(0, delta(token_id))
            second.probe_error, first.probe_error = None, unreachable()
            await until_state(found, up=1, down=1)
            first.errors = [unreachable()]
            with pytest.raises(InternalError, match="write different replies"):
                await reply.feed(0, delta(3))


async def test_whole_answers_and_vocabularies_wait_for_a_derender() -> None:
    only = Replica("a", errors=[unreachable(), None, unreachable(), None])
    async with watched(FakeDerender, only) as found:
        derender = derender_of(found)
        assert await derender.whole(SPEC, [], request_id="r", created=1) == b"whole"
        assert (await derender.vocabulary()).fingerprint == "f"


async def test_request_that_derender_refuses_is_refused() -> None:
    replicas = [Replica(each, errors=[InvalidRequestError("no")]) for each in "ab"]
    async with watched(FakeDerender, *replicas) as found:
        with pytest.raises(InvalidRequestError):
            await written(derender_of(found), [1])
    assert sum(each.num_calls for each in replicas) == 1


async def test_render_is_tried_at_each_replica_once() -> None:
    replicas = [Replica(each, errors=[unreachable()]) for each in "abc"]
    async with watched(FakeRender, *replicas) as found:
        render = FailoverRender(found, NO_PATIENCE)
        with pytest.raises(UnavailableError):
            await render.render("chat", b"{}", "r")
        assert [each.num_calls for each in replicas] == [1, 1, 1]
        assert found.num_retries == 2


async def test_render_that_hangs_or_fails_is_replaced_by_another() -> None:
    first, second = Replica("a"), Replica("b", probe_error=unreachable())
    async with watched(FakeRender, first, second) as found:
        await until_state(found, up=1, down=1)
        first.hangs, second.probe_error = True, None
        render = FailoverRender(found, NO_PATIENCE)
        assert await render.tokenize(b"t") == b"t"
        assert (first.num_calls, second.num_calls) == (1, 1)
        await until_state(found, up=1, down=1)
        assert await render.detokenize(b"d") == b"d"
        assert (await render.render("chat", b"{}", "r")).spec == SPEC
        assert await render.tokenizer_info() == b"{}"
        assert first.num_calls == 1
