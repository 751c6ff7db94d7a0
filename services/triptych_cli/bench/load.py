"""Load: requests at once or at random times, and how busy this client itself was."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from triptych_cli.bench.answers import Answer, EventReader, refusal, refusal_message
from triptych_cli.bench.connection import Address, Connections
from triptych_cli.bench.settings import Level

#: Seconds between two looks at how late this process wakes.
_TICK_S = 0.02
_OK = 200

Clock = Callable[[], float]


@dataclass(slots=True)
class ClientLoad:
    """This process while it asked: seconds of CPU and of time, and how late it woke each time."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    late_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends bodies to one endpoint and times the answers."""

    address: Address
    connections: Connections
    path: str
    key: str | None
    timeout_s: float
    on_end: Callable[[Answer], None]
    clock: Clock = time.perf_counter

    async def ask(self, body: bytes, due: float) -> Answer:
        """The answer to ``body``; whatever goes wrong is its ``error``."""
        answer = Answer(due=due)
        events = EventReader(answer, self.clock)
        request = self.address.request("POST", self.path, body, self.key)
        try:
            async with asyncio.timeout(self.timeout_s):
                status, refused = await self.connections.ask(request, events.feed)
        except TimeoutError:
            answer.error = "timeout"
        except OSError as error:
            answer.error = f"connection: {_reason(error)}"
        else:
            if status != _OK:
                answer.error = refusal(status, refused)
                answer.detail = refusal_message(status, refused)
            elif not events.is_done and answer.error is None:
                answer.error = "stream: ended without [DONE]"
        answer.end = self.clock()
        self.on_end(answer)
        return answer


async def run_level(
    asker: Asker, level: Level, bodies: Iterable[bytes], rng: random.Random
) -> tuple[list[Answer], ClientLoad]:
    """All answers of one level, and what they cost this process."""
    async with _watched() as client:
        if level.rate is not None:
            answers = await _open_loop(asker, level.rate, bodies, rng)
        else:
            answers = await _closed_loop(asker, level.concurrency or 1, bodies)
    return answers, client


async def _closed_loop(asker: Asker, concurrency: int, bodies: Iterable[bytes]) -> list[Answer]:
    waiting = iter(bodies)

    async def work() -> list[Answer]:
        return [await asker.ask(body, asker.clock()) for body in waiting]

    answers = await asyncio.gather(*(work() for _ in range(concurrency)))
    return [answer for each in answers for answer in each]


async def _open_loop(
    asker: Asker, rate: float, bodies: Iterable[bytes], rng: random.Random
) -> list[Answer]:
    """Arrivals of a Poisson process; a request is due at its time, whatever holds it up here."""
    due, asked = asker.clock(), []
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            await asyncio.sleep(max(0.0, due - asker.clock()))
            asked.append(group.create_task(asker.ask(body, due)))
            due += rng.expovariate(rate)
    return [task.result() for task in asked]


@contextlib.asynccontextmanager
async def _watched() -> AsyncIterator[ClientLoad]:
    client = ClientLoad()
    cpu, wall = time.process_time(), time.perf_counter()
    watching = asyncio.create_task(_note_lateness(client.late_s))
    try:
        yield client
    finally:
        watching.cancel()
        client.cpu_s = time.process_time() - cpu
        client.wall_s = time.perf_counter() - wall


async def _note_lateness(late_s: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late_s.append(time.perf_counter() - due)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
