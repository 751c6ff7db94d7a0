"""The replicas of one panel: found by their addresses, probed, ejected and let in again."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from triptych.errors import DeadlineError, TriptychError
from triptych_gateway.addresses import resolve
from triptych_gateway.replica import Connection, Replica
from triptych_gateway.ring import Ring

_LinkT = TypeVar("_LinkT")

#: Seconds that a probe may take at most; a third of the hang limit if that is less.
_PROBE_TIMEOUT_S = 2.0
#: Seconds between probes of a replica that is down: doubled up to the second.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Seconds: between two looks at host names and at each replica; until a silence is a hang.

    ``hang_timeout_s``: a process that answers no probe. ``stall_timeout_s``: a generate worker that
    answers, and has sequences in its steps, but ends no step.
    """

    resolve_every_s: float = 5.0
    probe_every_s: float = 1.0
    hang_timeout_s: float = 10.0
    stall_timeout_s: float = 120.0


class ReplicaSet(Generic[_LinkT]):
    """The replicas of ``panel``. Everything runs on one event loop, inside ``watched``.

    Args:
        panel: its name, in messages and metrics.
        addresses: ``host:port`` each; a host name with several addresses is several replicas.
        connect: opens the connection to one replica.
        options: how it is watched.
        find: what an address stands for now; raises ``OSError`` where it does not say.
    """

    def __init__(
        self,
        panel: str,
        addresses: list[str],
        *,
        connect: Callable[[str], Connection[_LinkT]],
        options: WatchOptions,
        find: Callable[[str], Awaitable[list[str]]] = resolve,
    ) -> None:
        self.panel = panel
        self.num_retries = 0
        self.num_resumes = 0
        self._addresses = addresses
        self._connect = connect
        self._options = options
        self._find = find
        self._found: dict[str, list[str]] = {}
        self._replicas: dict[str, Replica[_LinkT]] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._best: frozenset[Replica[_LinkT]] | None = None
        self._ring: Ring[Replica[_LinkT]] | None = None

    @property
    def replicas(self) -> list[Replica[_LinkT]]:
        """All of them, in any state."""
        return list(self._replicas.values())

    def usable(self) -> list[Replica[_LinkT]]:
        """Those that may get work."""
        return [each for each in self._replicas.values() if each.is_usable]

    def best(self) -> frozenset[Replica[_LinkT]]:
        """Those that are up; if none is, those under suspicion. Kept until a state changes."""
        if self._best is None:
            usable = self.usable()
            self._best = frozenset([each for each in usable if each.state == "up"] or usable)
        return self._best

    @property
    def ring(self) -> Ring[Replica[_LinkT]]:
        """All that are listed, in any state. Kept until one comes, goes or tells its capacity."""
        if self._ring is None:
            self._ring = Ring(each for each in self._replicas.values() if not each.is_gone)
        return self._ring

    def suspect(self, replica: Replica[_LinkT]) -> None:
        """A request failed at ``replica``."""
        replica.suspect()
        self._best = None

    def states(self) -> Counter[str]:
        """How many replicas are in each state; ``gone`` are those that only end what they have."""
        return Counter("gone" if each.is_gone else each.state for each in self._replicas.values())

    async def news(self, timeout_s: float) -> None:
        """Return when a replica came, went or changed its state, or after ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While it is open, replicas are found and probed. It opens when each was asked once."""
        await self._refresh()
        limit = asyncio.get_running_loop().time() + _PROBE_TIMEOUT_S
        while self.states()["new"] and asyncio.get_running_loop().time() < limit:
            await self.news(_PROBE_TIMEOUT_S)
        resolving = asyncio.create_task(self._keep_resolving())
        try:
            yield
        finally:
            tasks = [resolving, *self._watches]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in self._replicas.values():
                await replica.connection.close()

    async def _keep_resolving(self) -> None:
        while True:
            await asyncio.sleep(self._options.resolve_every_s)
            await self._refresh()

    async def _refresh(self) -> None:
        """Add what is new and mark what is gone. A name that does not resolve keeps what it had."""
        for address in self._addresses:
            try:
                self._found[address] = await self._find(address)
            except OSError as error:
                _log.warning("%s at %s does not resolve: %s", self.panel, address, error)
        listed = {each for found in self._found.values() for each in found}
        for address in listed - self._replicas.keys():
            self._replicas[address] = Replica(address, self._connect(address))
            self._ring = None
            watch = asyncio.create_task(self._watch(self._replicas[address]))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
        for replica in self._replicas.values():
            if replica.is_gone == (replica.address in listed):
                replica.is_gone = not replica.is_gone
                self._ring = None
                self._tell(replica)

    async def _watch(self, replica: Replica[_LinkT]) -> None:
        """Probe it until it is gone and idle."""
        pause_s = _FIRST_PAUSE_S
        while replica.outstanding or not replica.is_gone:
            await self._probe(replica)
            pause_s = _FIRST_PAUSE_S if replica.is_usable else min(2 * pause_s, _LAST_PAUSE_S)
            replica.is_wanted_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._options.probe_every_s if replica.is_usable else pause_s
                ):
                    await replica.is_wanted_now.wait()
        del self._replicas[replica.address]
        self._wake()
        await replica.connection.close()

    async def _probe(self, replica: Replica[_LinkT]) -> None:
        options, clock = self._options, asyncio.get_running_loop().time
        start = clock()
        info = None
        failure: Exception | None = None
        try:
            async with asyncio.timeout(min(_PROBE_TIMEOUT_S, options.hang_timeout_s / 3)):
                info = await replica.connection.probe()
        except (TimeoutError, TriptychError) as error:
            failure = error
        except Exception as error:  # noqa: BLE001  # nobody would probe it again
            _log.exception("a probe of %s at %s failed", self.panel, replica.address)
            failure = error
        before, capacity = replica.state, replica.capacity  # a request may have failed meanwhile
        if failure is None:
            replica.answered(info, clock(), stall_timeout_s=options.stall_timeout_s)
        elif isinstance(failure, TimeoutError | DeadlineError):
            replica.was_silent(start, clock(), hang_timeout_s=options.hang_timeout_s)
        else:
            replica.refused()
        if replica.capacity != capacity:
            self._ring = None
        if replica.state != before:
            self._tell(replica)

    def _tell(self, replica: Replica[_LinkT]) -> None:
        self._best = None
        state = "gone" if replica.is_gone else replica.state
        _log.info("%s at %s is %s", self.panel, replica.address, state)
        self._wake()

    def _wake(self) -> None:
        """End every ``news`` that waits."""
        self._news.set()
        self._news = asyncio.Event()
