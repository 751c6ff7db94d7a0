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
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import msgspec
from tokenizers import Tokenizer

from bench.workloads import WORDS
from triptych.convert import info_to_proto
from triptych.convert_packed import pack_deltas
from triptych.event_loop import run_loop
from triptych.logprobs import pack_logprobs
from triptych.models import ensure
from triptych.rpc import RpcServer
from triptych.v1 import generate_pb2, generate_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateDelta, ModelInfo

_NUM_CANDIDATES = 6
#: Different tokens that one message may have of a request, and different such rows.
_MAX_TOKENS = 64
_NUM_ROWS = 64

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class _Session:
    """Requests of one caller: how many tokens each still gets."""

    left: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def take_commands(self, commands: AsyncIterator[generate_pb2.GenerateCommands]) -> None:
        async for message in commands:
            for command in message.commands:
                self._apply(command)
            self.news.set()

    def _apply(self, command: generate_pb2.GenerateCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "submit":
            request = command.submit.request
            self.left[command.submit.key] = request.sampling_params.max_tokens - request.resume_from
        elif kind == "abort":
            self.left.pop(command.abort, None)
        elif kind == "hold":
            self.held.add(command.hold)
        else:
            self.held.discard(command.release)

    def next_tokens(self, num_steps: int) -> dict[int, int]:
        """How many tokens each request gets, by key; negative: it ends with them."""
        given = {}
        for key, left in list(self.left.items()):
            if key in self.held:
                continue
            if left > num_steps:
                given[key], self.left[key] = num_steps, left - num_steps
            else:
                given[key] = -left
                del self.left[key]
        return given


class FastWorker(generate_pb2_grpc.GenerateServiceServicer):
    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._rows = token_rows()

    async def Session(
        self, request_iterator: AsyncIterator[generate_pb2.GenerateCommands], context: _Context
    ) -> AsyncIterator[generate_pb2.GenerateStep]:
        session = _Session()
        reading = asyncio.create_task(session.take_commands(request_iterator))
        clock = time.perf_counter
        last = clock()
        try:
            while True:
                await asyncio.sleep(max(0.0, last + self._step_s - clock()))
                num_steps = min(_MAX_TOKENS, max(1, int((clock() - last) / self._step_s)))
                if given := session.next_tokens(num_steps):
                    last += num_steps * self._step_s
                    yield self._message(given)
                else:
                    session.news.clear()
                    await session.news.wait()
                    last = clock()
        finally:
            reading.cancel()

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

    def _message(self, given: dict[int, int]) -> generate_pb2.GenerateStep:
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
        await asyncio.gather(*(rpc.server.stop(0) for rpc in servers))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--ports", type=int, default=1, help="how many workers it is")
    arguments = parser.parse_args()
    run_loop(serve(arguments.step_ms / 1000, arguments.ports))
