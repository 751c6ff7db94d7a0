"""Who is asked next when a replica fails a request, and when to give up."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from triptych.errors import InternalError, OverloadedError, TriptychError, UnavailableError
from triptych_gateway.balance import least_loaded
from triptych_gateway.replica import Replica
from triptych_gateway.replicas import ReplicaSet

_LinkT = TypeVar("_LinkT")

#: Attempts in a row that may fail without anything received: a request that kills its workers
#: must not go through a whole fleet.
MAX_ATTEMPTS = 4
#: Seconds between two looks for a replica while an answer that has begun waits for one.
_LOOK_EVERY_S = 0.25


class Attempts(Generic[_LinkT]):
    """The attempts of one request.

    A request that has not begun is tried at other replicas, each once, and refused when those are
    used up. One that has begun (``has_begun``: work was done that would be lost) also waits up to
    ``take_over_timeout_s`` for a replica to come up or to have room. What another replica would
    answer alike (400, 404, 413, 504) is raised at once.

    Args:
        replicas: those to choose from.
        choose: picks one of several.
        fits: whether a replica may be used at all.
        take_over_timeout_s: see above; it begins again whenever something was received.
    """

    def __init__(
        self,
        replicas: ReplicaSet[_LinkT],
        *,
        take_over_timeout_s: float,
        choose: Callable[[Sequence[Replica[_LinkT]]], Replica[_LinkT]] = least_loaded,
        fits: Callable[[Replica[_LinkT]], bool] = lambda _: True,
        has_begun: bool = False,
    ) -> None:
        self.has_begun = has_begun
        self._replicas = replicas
        self._choose = choose
        self._fits = fits
        self._take_over_timeout_s = take_over_timeout_s
        self._tried: set[Replica[_LinkT]] = set()
        self._broken: set[Replica[_LinkT]] = set()
        self._num_failed = 0
        self._deadline: float | None = None
        self._error: TriptychError | None = None

    async def next(self) -> Replica[_LinkT]:
        """The replica to ask.

        Raises:
            TriptychError: nobody is left: the last error, or that no replica is up.
        """
        while True:
            usable = self._candidates()
            if usable:
                chosen = self._choose(usable)
                self._tried.add(chosen)
                self._replicas.num_retries += self._error is not None
                return chosen
            await self._wait()

    def progressed(self) -> None:
        """Something was received."""
        if self._num_failed or not self.has_begun:
            self.has_begun = True
            self._num_failed = 0
            self._deadline = None
            self._tried.clear()

    def failed(self, replica: Replica[_LinkT], error: TriptychError) -> None:
        """Note that ``replica`` failed the request.

        Raises:
            TriptychError: ``error``, if no other replica is to be asked.
        """
        if isinstance(error, UnavailableError | InternalError):
            replica.suspect()
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

    def _candidates(self) -> list[Replica[_LinkT]]:
        """Those that are up; if none is, those under suspicion."""
        out = self._tried | self._broken
        usable = [each for each in self._replicas.usable() if each not in out and self._fits(each)]
        return [each for each in usable if each.state == "up"] or usable

    async def _wait(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._take_over_timeout_s
        is_hopeless = isinstance(self._error, InternalError)
        if not self.has_begun or is_hopeless or now >= self._deadline:
            raise self._error or UnavailableError(
                f"no replica of {self._replicas.panel} is up", retry_after_s=1
            )
        await self._replicas.news(min(_LOOK_EVERY_S, self._deadline - now))
        self._tried.clear()
