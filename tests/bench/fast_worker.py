"""A generate worker without a model, as fast as it can be: ``python -m bench.fast_worker``.

Each of its steps gives a token with six candidates to every request that is not held. While a
message waits for its transport the steps go on, and the next message has all that they gave, as
generate's has.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import msgspec
from tokenizers import Tokenizer

from bench.workloads import WORDS
from triptych.convert import info_to_proto
from triptych.convert_packed import pack_deltas
from triptych.drain import Drain
from triptych.event_loop import run_loop
from triptych.logprobs import pack_logprobs
from triptych.models import ensure
from triptych.rpc import RpcServer
from triptych.sessions import SessionKind, SessionRequests
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta, ModelInfo

_NUM_CANDIDATES = 6
#: Different tokens that one message may have of a request, and different such rows.
_MAX_TOKENS = 64
_NUM_ROWS = 64

_Context = grpc.aio.ServicerContext[Any, Any]


class _Session:
    """Requests of one caller: how many tokens each still gets. A step is due each ``step_s``."""

    def __init__(self, worker: "FastWorker", step_s: float, on_news: Callable[[], None]) -> None:
        self._worker = worker
        self._step_s = step_s
        self._on_news = on_news
        self._left: dict[int, int] = {}
        self._held: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._is_idle = True
        self._is_due = False
        self.requests = SessionRequests(Drain(), lambda *_: None)

    def apply(self, commands: generate_pb2.GenerateCommands) -> None:
        for command in commands.commands:
            self._apply(command)
        if self._is_idle:
            self._is_idle = False
            self._last = time.perf_counter()
            self._await_step()

    def take_step(self) -> generate_pb2.GenerateStep | None:
        if not self._is_due:
            return None
        self._is_due = False
        num_steps = int((time.perf_counter() - self._last) / self._step_s)
        num_steps = min(_MAX_TOKENS, max(1, num_steps))
        self._last += num_steps * self._step_s
        given = self._next_tokens(num_steps)
        if not given:
            self._is_idle = True
            return None
        self._await_step()
        return self._worker.message(given)

    def _apply(self, command: generate_pb2.GenerateCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "submit":
            request = command.submit.request
            tokens_left = request.sampling_params.max_tokens - request.resume_from
            self._left[command.submit.key] = tokens_left
        elif kind == "abort":
            self._left.pop(command.abort, None)
        elif kind == "hold":
            self._held.add(command.hold)
        else:
            self._held.discard(command.release)

    def _await_step(self) -> None:
        wait_s = max(0.0, self._last + self._step_s - time.perf_counter())
        self._loop.call_later(wait_s, self._take_turn)

    def _take_turn(self) -> None:
        self._is_due = True
        self._on_news()

    def _next_tokens(self, num_steps: int) -> dict[int, int]:
        """How many tokens each request gets, by key; negative: it ends with them."""
        given = {}
        for key, left in list(self._left.items()):
            if key in self._held:
                continue
            if left > num_steps:
                given[key], self._left[key] = num_steps, left - num_steps
            else:
                given[key] = -left
                del self._left[key]
        return given


class FastWorker(generate_pb2_grpc.GenerateServiceServicer):
    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._rows = token_rows()

    def open_session(self, on_news: Callable[[], None]) -> _Session:
        return _Session(self, self._step_s, on_news)

    async def Session(self, request_iterator: Any, context: _Context) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only on a connection of its own")
        yield None

    async def Generate(self, request: Any, context: _Context) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "sessions only")
        yield None

    async def Abort(self, request: Any, context: _Context) -> generate_pb2.AbortResponse:
        return generate_pb2.AbortResponse()

    async def PutVocabulary(
        self, request: Any, context: _Context
    ) -> generate_pb2.PutVocabularyResponse:
        return generate_pb2.PutVocabularyResponse()

    async def GetInfo(self, request: Any, context: _Context) -> generate_pb2.GetInfoResponse:
        return info_to_proto(
            ModelInfo(
                model="smollm2",
                max_model_len=8192,
                vocab_size=49152,
                dtype="none",
                device="none",
                max_logprobs=20,
                can_resume=True,
            )
        )

    def message(self, given: dict[int, int]) -> generate_pb2.GenerateStep:
        return generate_pb2.GenerateStep(
            deltas=pack_deltas(
                (key, self._rows[key % _NUM_ROWS][abs(count)][count < 0])
                for key, count in given.items()
            )
        )


def token_rows() -> list[list[tuple[GenerateDelta, GenerateDelta]]]:
    """By row and number of tokens, up to ``_MAX_TOKENS``: a delta that goes on, one that ends."""
    tokenizer = Tokenizer.from_file(str(ensure("smollm2").directory / "tokenizer.json"))
    ids = tokenizer.encode(" ".join([WORDS] * 8)).ids
    return [
        [_deltas(ids[row : row + count], random.Random(row)) for count in range(_MAX_TOKENS + 1)]
        for row in range(_NUM_ROWS)
    ]


def _deltas(token_ids: list[int], rng: random.Random) -> tuple[GenerateDelta, GenerateDelta]:
    scores = [_scores(token_id, rng) for token_id in token_ids]
    goes_on = ChoiceDelta(index=0, token_ids=token_ids, logprobs=pack_logprobs(scores))
    ends = msgspec.structs.replace(goes_on, finish_reason="length")
    return (
        GenerateDelta(request_id="", choices=[goes_on]),
        GenerateDelta(request_id="", choices=[ends]),
    )


def _scores(token_id: int, rng: random.Random) -> list[tuple[int, float, int]]:
    ids = [token_id, *rng.sample(range(300, 20_000), _NUM_CANDIDATES - 1)]
    return [(each, -rng.random() * 9, rank) for rank, each in enumerate(ids, 1)]


async def serve(step_s: float, num_ports: int) -> int:
    """Serve as ``num_ports`` workers, each with a port of its own."""
    worker = FastWorker(step_s)
    servers = [RpcServer(["triptych.v1.GenerateService"]) for _ in range(num_ports)]
    for rpc in servers:
        generate_pb2_grpc.add_GenerateServiceServicer_to_server(worker, rpc.server)
        commands = generate_pb2.GenerateCommands
        rpc.add_sessions(SessionKind("triptych.v1.GenerateService", commands, worker.open_session))
    return await serve_scripted(servers)


async def serve_scripted(servers: list[RpcServer]) -> int:
    """Serve each on a port of its own, which are printed, until SIGINT."""
    ports = []
    for rpc in servers:
        ports.append(rpc.bind("127.0.0.1", 0))
        await rpc.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    print("serves on " + "  ".join(f"grpc://127.0.0.1:{port}" for port in ports), flush=True)
    await stop.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*(rpc.stop(0) for rpc in servers))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--ports", type=int, default=1, help="how many workers it is")
    arguments = parser.parse_args()
    run_loop(serve(arguments.step_ms / 1000, arguments.ports))
