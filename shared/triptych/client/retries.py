"""When to ask again: after a 429 or a 503, before anything of an answer has come."""

import random
from dataclasses import dataclass

from triptych.errors import OverloadedError, TriptychError, UnavailableError

#: Seconds: the mean of the first wait where a server does not say when, and the longest.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0
#: Waits are stretched by up to this share, so that clients refused together do not return together.
_JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long. ``limit`` 0 never asks again.

    A server that wants more patience than ``max_wait_s`` is not asked again: its error is raised.
    """

    limit: int = 3
    max_wait_s: float = 30.0

    def begin(self) -> "Attempts":
        return Attempts(self)


DEFAULT_RETRIES = Retries()


class Attempts:
    """The attempts of one request."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._num_failed = 0

    def wait_s(self, error: TriptychError) -> float:
        """Seconds to wait before the next attempt, ``retry_after_s`` of the error at least.

        Raises:
            TriptychError: ``error``, where another attempt is of no use or not allowed.
        """
        if not isinstance(error, OverloadedError | UnavailableError):
            raise error
        if self._num_failed >= self._retries.limit:
            raise error
        wait_s = error.retry_after_s
        if wait_s is None:
            wait_s = min(_FIRST_WAIT_S * 2**self._num_failed, _LONGEST_WAIT_S)
        if wait_s > self._retries.max_wait_s:
            raise error
        self._num_failed += 1
        return wait_s * (1 + _JITTER * random.random())
