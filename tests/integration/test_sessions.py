"""Sessions over real sockets, against the same requests as calls of their own."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from support.session_server import (
    BROKEN,
    ENDLESS,
    REFUSED,
    DrawnService,
    drawn_request,
    drawn_rpc,
)
from support.stack import free_ports
from support.takers import drawn_taker
from triptych.convert import delta_from_proto, request_to_proto
from triptych.errors import (
    DeadlineError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.logprobs import Logprobs
from triptych.rpc import RpcErrors, RpcServer, open_channel
from triptych.v1 import generate_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta, GenerateRequest, join_deltas
from triptych_gateway.generate_session import HOLD_ABOVE
from triptych_gateway.over_grpc import GrpcGenerate


@dataclass(slots=True)
class Served:
    """A server, and a gateway's link to it."""

    service: DrawnService
    rpc: RpcServer
    target: str
    link: GrpcGenerate


class Serving(Protocol):
    def __call__(
        self, port: int = 0, *, timeout_s: float = 20
    ) -> AbstractAsyncContextManager[Served]: ...


@pytest.fixture(params=["event loop", "grpc.aio"])
def served(request: pytest.FixtureRequest) -> Serving:
    """Sessions are served as our gateway's are, or as a stranger's."""
    return functools.partial(_served, by_grpc=request.param == "grpc.aio")


@contextlib.asynccontextmanager
async def _served(port: int = 0, *, timeout_s: float = 20, by_grpc: bool) -> AsyncIterator[Served]:
    service = DrawnService()
    rpc = drawn_rpc(service, by_grpc=by_grpc)
    target = f"127.0.0.1:{rpc.bind('127.0.0.1', port)}"
    await rpc.start()
    link = GrpcGenerate(target, timeout_s=timeout_s)
    try:
        yield Served(service, rpc, target, link)
    finally:
        await link.close()
        await rpc.stop(0)


@dataclass(slots=True)
class Heard:
    """What a reader got: deltas, and how they ended."""

    deltas: list[GenerateDelta]
    error: TriptychError | None = None

    def joined(self) -> tuple[list[ChoiceDelta], Logprobs | None, int]:
        cached_tokens = sum(delta.cached_tokens for delta in self.deltas)
        return (*join_deltas(self.deltas), cached_tokens)

    def end(self) -> tuple[type[TriptychError], str, float | None] | None:
        error = self.error
        return None if error is None else (type(error), error.message, error.retry_after_s)


async def by_session(
    link: GrpcGenerate,
    request: GenerateRequest,
    *,
    pause_s: float = 0,
    leave_after: int = -1,
    share_taken: float = 0,
) -> Heard:
    """Read the answer, pausing before each delta; leave after so many, or some more by a taker."""
    heard = Heard([])
    taker = drawn_taker(7, share_taken, heard.deltas.append)
    try:
        async with contextlib.aclosing(link.generate(request, taker)) as deltas:
            while leave_after < 0 or len(heard.deltas) < leave_after:
                await asyncio.sleep(pause_s)
                heard.deltas.append(await anext(deltas))
    except StopAsyncIteration:
        pass
    except TriptychError as error:
        heard.error = error
    return heard


async def by_call(target: str, request: GenerateRequest) -> Heard:
    heard = Heard([])
    async with open_channel(target) as channel:
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        try:
            async with RpcErrors("generate"):
                async for message in stub.Generate(request_to_proto(request), timeout=20):
                    heard.deltas.append(delta_from_proto(message))
        except TriptychError as error:
            heard.error = error
    return heard


readers = st.lists(
    st.tuples(
        st.integers(0, 200) | st.sampled_from([REFUSED, BROKEN]),  # what it asks
        st.integers(1, 3),  # choices
        st.sampled_from([0.0, 0.001, 0.02]),  # how slowly it reads
        st.sampled_from([-1, -1, 0, 1, 5]),  # when it leaves
        st.sampled_from([0.0, 0.5, 1.0]),  # what its taker takes of what it is offered
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=readers)
def test_answers_are_those_of_calls_of_their_own(
    served: Serving,
    asked: list[tuple[int, int, float, int, float]],
) -> None:
    async def check() -> None:
        async with served() as server:
            requests = [drawn_request(first_id, n=n) for first_id, n, *_ in asked]
            wanted = [await by_call(server.target, request) for request in requests]
            got = await asyncio.gather(
                *(
                    by_session(
                        server.link,
                        request,
                        pause_s=pause_s,
                        leave_after=leave_after,
                        share_taken=share_taken,
                    )
                    for request, (_, _, pause_s, leave_after, share_taken) in zip(
                        requests, asked, strict=True
                    )
                )
            )
            for expected, heard, (*_, leave_after, _) in zip(wanted, got, asked, strict=True):
                if leave_after < 0:
                    assert heard.joined() == expected.joined()
                    assert heard.end() == expected.end()
                else:
                    assert_beginning(heard, expected)
            await server.service.until(lambda: server.service.num_running == 0)

    asyncio.run(check())


def assert_beginning(heard: Heard, whole: Heard) -> None:
    """Every choice of ``heard`` is the beginning of the same one of ``whole``."""
    by_index = {choice.index: choice for choice in whole.joined()[0]}
    for choice in heard.joined()[0]:
        count = len(choice.token_ids)
        expected = by_index[choice.index]
        assert choice.token_ids == expected.token_ids[:count]
        assert choice.logprobs == (expected.logprobs and expected.logprobs.head(count))


async def test_failure_of_one_request_leaves_the_others(served: Serving) -> None:
    async with served() as server:
        asked = [drawn_request(each) for each in (REFUSED, 3, BROKEN, 4)]
        heard = await asyncio.gather(*(by_session(server.link, each) for each in asked))
        wanted = [await by_call(server.target, each) for each in asked]
    assert [each.end() for each in heard] == [each.end() for each in wanted]
    assert heard[0].end() == (OverloadedError, "9 wait, limit is 8", 2)
    assert heard[1].joined() == wanted[1].joined()


async def test_taker_that_fails_ends_its_request_alone(served: Serving) -> None:
    def broken(delta: GenerateDelta) -> bool:
        raise RuntimeError("a fault of ours")

    async with served(timeout_s=300) as server:
        other = asyncio.create_task(by_session(server.link, drawn_request(5), pause_s=0.001))
        with pytest.raises(RuntimeError, match="a fault of ours"):
            async for _ in server.link.generate(drawn_request(ENDLESS), broken):
                pass
        await server.service.until(lambda: ENDLESS in server.service.aborted)
        heard = await other
        assert heard.joined() == (await by_call(server.target, drawn_request(5))).joined()
    assert server.service.aborted == [ENDLESS]


async def test_reader_that_leaves_aborts_its_request_alone(served: Serving) -> None:
    async with served() as server:
        other = asyncio.create_task(by_session(server.link, drawn_request(5), pause_s=0.001))
        await by_session(server.link, drawn_request(ENDLESS), leave_after=2)
        await server.service.until(lambda: ENDLESS in server.service.aborted)
        heard = await other
        assert heard.joined() == (await by_call(server.target, drawn_request(5))).joined()
    assert server.service.aborted == [ENDLESS]


async def test_reader_that_stands_still_is_held_and_the_others_go_on(served: Serving) -> None:
    async with served() as server:
        still = server.link.generate(drawn_request(ENDLESS))
        await anext(still)
        for first_id in range(20):
            await by_session(server.link, drawn_request(first_id))
        (mailbox,) = server.link._session._mailboxes.values()
        waiting = mailbox.num_waiting
        assert waiting > HOLD_ABOVE
        for first_id in range(20):
            await by_session(server.link, drawn_request(first_id))
        assert mailbox.num_waiting == waiting  # all that came later waits at the worker
        ids = [(await anext(still)).choices[0].token_ids for _ in range(3)]
        assert len(ids[0]) == waiting
        await still.aclose()


async def test_session_that_breaks_fails_its_requests_and_is_opened_again(served: Serving) -> None:
    async with served(*free_ports(1)) as server:
        reading = [
            asyncio.create_task(by_session(server.link, drawn_request(ENDLESS))) for _ in range(3)
        ]
        await server.service.until(lambda: server.service.num_running == 3)
        await server.rpc.stop(0)
        heard = await asyncio.gather(*reading)
        assert [type(each.error) for each in heard] == [UnavailableError] * 3
        refused = await by_session(server.link, drawn_request(2))
        assert isinstance(refused.error, UnavailableError)
        port = int(server.target.rpartition(":")[2])
        async with served(port) as later:
            for _ in range(400):  # gRPC waits a moment between its attempts to connect
                again = await by_session(server.link, drawn_request(2))
                if again.error is None:
                    break
                await asyncio.sleep(0.05)
            assert again.joined() == (await by_call(later.target, drawn_request(2))).joined()


async def test_late_answer_ends_at_the_worker_too(served: Serving) -> None:
    async with served(timeout_s=0.2) as server:
        heard = await by_session(server.link, drawn_request(ENDLESS))
        assert isinstance(heard.error, DeadlineError)
        await server.service.until(lambda: server.service.num_running == 0)


async def test_drain_refuses_requests_ends_the_rest_and_the_session(served: Serving) -> None:
    async with served() as server:
        running = asyncio.create_task(by_session(server.link, drawn_request(ENDLESS)))
        await server.service.until(lambda: server.service.num_running == 1)
        await server.rpc.begin_drain()
        refused = await by_session(server.link, drawn_request(3))
        assert refused.end() == (UnavailableError, "the server is stopping", 1)
        assert server.rpc.drain.cut_off() == 1
        heard = await running
        assert heard.deltas
        assert heard.end() == (UnavailableError, "the server is stopping", 1)
        await server.rpc.drain.until_idle()
        async with asyncio.timeout(10):
            await server.rpc.stop(60)  # nothing keeps it: the session has ended by itself


async def test_worker_that_loses_its_caller_aborts_everything(served: Serving) -> None:
    async with served() as server:
        reading = [
            asyncio.create_task(by_session(server.link, drawn_request(ENDLESS))) for _ in range(3)
        ]
        await server.service.until(lambda: server.service.num_running == 3)
        await server.link.close()
        await server.service.until(lambda: server.service.num_running == 0)
        heard = await asyncio.gather(*reading)
    assert all(isinstance(each.error, UnavailableError) for each in heard)
    assert server.service.aborted == [ENDLESS] * 3
