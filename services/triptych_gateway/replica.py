"""One replica of a panel: what is known of it, and the requests that use it."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from triptych.errors import TriptychError, UnavailableError
from triptych.wire import ModelInfo
from triptych_gateway import deadline

_LinkT = TypeVar("_LinkT")
_T = TypeVar("_T")

#: ``new``: not asked yet. ``suspect``: a request failed there, or it was slow to answer once; used
#: where nothing better is. ``down``: it does not answer, hangs or drains; not used.
State = Literal["new", "up", "suspect", "down"]


class Lease:
    """One request's use of a replica. It can be cut from outside while it waits for an answer."""

    def __init__(self, replica: "Replica[_LinkT]") -> None:
        self._replica = replica
        self._waiting: asyncio.Task[object] | None = None
        self._cut: TriptychError | None = None

    def cut(self, error: TriptychError) -> None:
        """End the wait that runs, or the next one, with ``error``."""
        if self._cut is None:
            self._cut = error
            if self._waiting is not None:
                self._waiting.cancel()

    async def wait(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """What ``ask`` gives.

        Cancelling from outside is told from a cut as ``asyncio.timeout`` does it. There is no task
        and no timer for a wait, because there is a wait for every message of every answer.

        Raises:
            TriptychError: the lease was cut, or what ``ask`` raises.
        """
        if self._cut is not None:
            raise self._cut
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        num_cancels = task.cancelling()
        self._waiting = task
        try:
            answer = await ask()
        except asyncio.CancelledError:
            if self._cut is not None and task.uncancel() <= num_cancels:
                raise self._cut from None
            raise
        finally:
            self._waiting = None
        self._replica.was_heard()
        return answer


@dataclass(frozen=True, slots=True)
class Connection(Generic[_LinkT]):
    """A link, a cheap question that shows whether its panel serves, and how both are closed.

    ``probe`` gives what a generate worker says of itself, None for other panels; it raises a
    ``TriptychError`` where nobody answers or the panel drains.
    """

    link: _LinkT
    probe: Callable[[], Awaitable[ModelInfo | None]]
    close: Callable[[], Awaitable[None]]


class Replica(Generic[_LinkT]):
    """A panel at ``address``: its link, its state, and its load.

    ``info`` is what a generate worker said last; other panels have none. ``is_gone``: its address
    vanished, so that it takes no new work. A request is routed by the load, the capacity and
    ``is_full`` of hundreds, so these are kept, not computed from what was said.

    Attributes:
        load: sequences: what was reported, with what this gateway began or ended since.
        capacity: what its share of the work is measured by: KV blocks where they are known.
        is_full: requests wait there for KV blocks, so a new one would too.
    """

    def __init__(self, address: str, connection: Connection[_LinkT]) -> None:
        self.address = address
        self.link = connection.link
        self.connection = connection
        self.state: State = "new"
        self.is_gone = False
        self.info: ModelInfo | None = None
        self.outstanding = 0
        self.load = 0
        self.capacity = 1
        self.is_full = False
        self.is_wanted_now = asyncio.Event()
        self._load_of_others = 0
        self._leases: set[Lease] = set()
        self._silent_since: float | None = None
        self._num_timeouts = 0
        self._stands_since: float | None = None

    @property
    def is_usable(self) -> bool:
        return not self.is_gone and self.state in {"up", "suspect"}

    @contextlib.contextmanager
    def lease(self, weight: int = 1) -> Iterator[Lease]:
        """Use it for a request of ``weight`` sequences, until its deadline cuts it."""
        lease = Lease(self)
        timer = None
        if (end := deadline.end()) < math.inf:
            timer = asyncio.get_running_loop().call_at(end, lease.cut, deadline.late())
        self._use(weight)
        self._leases.add(lease)
        try:
            yield lease
        finally:
            self._use(-weight)
            self._leases.discard(lease)
            if timer is not None:
                timer.cancel()

    def suspect(self) -> None:
        """A request failed there: ask it at once how it is, and prefer others until then."""
        if self.state == "up":
            self.state = "suspect"
        self.is_wanted_now.set()

    def was_heard(self) -> None:
        """Something came from it, so it does not hang."""
        self._silent_since = None
        self._num_timeouts = 0

    def answered(self, info: ModelInfo | None, now: float, *, stall_timeout_s: float) -> None:
        """It answered a probe: it is up, unless its step loop stands still."""
        self.was_heard()
        self._note_progress(info, now)
        self._note_load(info)
        if self._stands_since is not None and now - self._stands_since >= stall_timeout_s:
            self.state = "down"
            self._cut_all(f"no step ended in {stall_timeout_s:g} s")
        else:
            self.state = "up"

    def refused(self) -> None:
        """It is not reachable, or it drains. What runs there goes on or breaks by itself."""
        self.was_heard()
        self.state = "down"

    def was_silent(self, since: float, now: float, *, hang_timeout_s: float) -> None:
        """A probe sent at ``since`` got no answer in time.

        One alone is no hang: this process may have been stopped itself.
        """
        self._silent_since = since if self._silent_since is None else self._silent_since
        self._num_timeouts += 1
        if self._num_timeouts > 1 and now - self._silent_since >= hang_timeout_s:
            self.state = "down"
            self._cut_all(f"no answer in {hang_timeout_s:g} s")
        elif self.state == "up":
            self.state = "suspect"

    def _use(self, num_sequences: int) -> None:
        self.outstanding += num_sequences
        self.load = self.outstanding + self._load_of_others

    def _note_load(self, info: ModelInfo | None) -> None:
        self.info = info
        if info is not None and (load := info.load) is not None:
            reported = load.num_running + load.num_waiting
            self._load_of_others = max(0, reported - self.outstanding)
            self.capacity = load.num_blocks
            self.is_full = bool(load.num_waiting and load.num_free_blocks * 20 < load.num_blocks)
        self._use(0)

    def _note_progress(self, info: ModelInfo | None, now: float) -> None:
        before, after = self.info and self.info.load, info and info.load
        stands = bool(
            before and after and after.num_running and before.num_steps == after.num_steps
        )
        self._stands_since = (self._stands_since or now) if stands else None

    def _cut_all(self, why: str) -> None:
        for lease in list(self._leases):
            lease.cut(UnavailableError(f"{self.address} hangs: {why}", retry_after_s=1))
