"""Who is asked next when a replica fails a request, how long is waited for it, when to give up."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from triptych.errors import InternalError, OverloadedError, TriptychError, UnavailableError
from triptych_gateway import deadline
from triptych_gateway.balance import least_loaded
from triptych_gateway.replica import Replica
from triptych_gateway.replicas import ReplicaSet

_LinkT = TypeVar("_LinkT")

#: Attempts in a row that may fail without anything received: a request that kills its workers
#: must not go through a whole fleet.
MAX_ATTEMPTS = 4
#: Seconds between two looks for a replica while an answer that has begun waits for one.
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that an answer waits for a replica: before it has begun, and then.

    ``come_up_s``: while no replica is up. ``take_over_s``: also while none has room; it begins
    again whenever something was received.
    """

    come_up_s: float
    take_over_s: float


NO_PATIENCE = Patience(0, 0)


class Attempts(Generic[_LinkT]):
    """The attempts of one request.

    A request that has not begun is tried at other replicas, each once; when those are used up it is
    refused, unless none is up: then it waits for one. One that has begun (``has_begun``: work was
    done that would be lost) also waits for a replica that failed it or has no room. What another
    replica would answer alike (400, 404, 413, 504) is raised at once.

    Args:
        replicas: those to choose from.
        patience: how long it waits, but never beyond the request's deadline.
        choose: picks one of several.
        fits: whether a replica can go on with what has begun.
    """

    def __init__(
        self,
        replicas: ReplicaSet[_LinkT],
        patience: Patience,
        *,
        choose: Callable[[Set[Replica[_LinkT]]], Replica[_LinkT]] = least_loaded,
        fits: Callable[[Replica[_LinkT]], bool] = lambda _: True,
        has_begun: bool = False,
    ) -> None:
        self.has_begun = has_begun
        self._replicas = replicas
        self._patience = patience
        self._choose = choose
        self._fits = fits
        self._tried: set[Replica[_LinkT]] = set()
        self._broken: set[Replica[_LinkT]] = set()
        self._num_failed = 0
        self._until: float | None = None
        self._error: TriptychError | None = None

    async def next(self) -> Replica[_LinkT]:
        """The replica to ask.

        Raises:
            TriptychError: nobody is left: the last error, or that no replica is up. Or the
                request's time is over.
        """
        while True:
            if candidates := self._candidates():
                chosen = self._choose(candidates)
                self._tried.add(chosen)
                self._replicas.num_retries += self._error is not None
                return chosen
            await self._wait()

    def progressed(self) -> None:
        """Something was received."""
        if self._error is not None or not self.has_begun:
            self.has_begun = True
            self._num_failed = 0
            self._error = self._until = None
            self._tried.clear()

    def failed(self, replica: Replica[_LinkT], error: TriptychError) -> None:
        """Note that ``replica`` failed the request.

        Raises:
            TriptychError: ``error``, if no other replica is to be asked.
        """
        if isinstance(error, UnavailableError | InternalError):
            self._replicas.suspect(replica)
            self._num_failed += 1
        elif isinstance(error, OverloadedError):
            self._num_failed += not self.has_begun
        else:
            raise error
        if isinstance(error, InternalError):
            self._broken.add(replica)
        if self._num_failed >= MAX_ATTEMPTS:
            raise error
        self._error = error

    def _candidates(self) -> Set[Replica[_LinkT]]:
        """Of those not tried that can go on with what has begun, the ones up; if none is, all."""
        out = self._tried | self._broken
        if not out and not self.has_begun:
            return self._replicas.best()
        left = {
            each for each in self._replicas.usable() if each not in out and self._may_take(each)
        }
        return {each for each in left if each.state == "up"} or left

    def _may_take(self, replica: Replica[_LinkT]) -> bool:
        return not self.has_begun or self._fits(replica)

    async def _wait(self) -> None:
        """Wait for news of the replicas.

        Raises:
            TriptychError: it would be in vain, or was for too long.
        """
        patience_s = self._patience.take_over_s if self.has_begun else self._patience.come_up_s
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + patience_s
        left_s = deadline.within(self._until - now)
        if left_s <= 0 or not self._may_change():
            raise self._error or UnavailableError(
                f"no replica of {self._replicas.panel} is up", retry_after_s=1
            )
        await self._replicas.news(min(_LOOK_EVERY_S, left_s))
        if self.has_begun:
            self._tried.clear()
        else:
            self._tried.intersection_update(self._replicas.usable())

    def _may_change(self) -> bool:
        """Another attempt may end otherwise.

        One that has not begun needs a replica that comes up: one that is up has refused it.
        """
        if isinstance(self._error, InternalError):
            return False
        return self.has_begun or all(each.state != "up" for each in self._replicas.best())
