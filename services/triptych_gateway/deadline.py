"""The time by which the request that is served now must be answered: each hop gets what is left.

It belongs to the request's context, which the tasks that work on it inherit. Times are the event
loop's seconds; outside of a request there is no deadline.
"""

import asyncio
import math
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TypeVar

from triptych.errors import DeadlineError

_T = TypeVar("_T")

_end: ContextVar[float] = ContextVar("deadline", default=math.inf)


def begin(timeout_s: float) -> None:
    """Serve a request from now on, for ``timeout_s`` at most."""
    _end.set(asyncio.get_running_loop().time() + timeout_s)


def end() -> float:
    """The request's deadline; infinity outside of one."""
    return _end.get()


def within(most_s: float) -> float:
    """What a hop that may take ``most_s`` may still take.

    Raises:
        DeadlineError: no time is left.
    """
    left_s = _end.get() - asyncio.get_running_loop().time()
    if left_s <= 0:
        raise late()
    return min(most_s, left_s)


async def kept(work: Awaitable[_T]) -> _T:
    """The result of ``work``, which is cancelled at the deadline.

    Raises:
        DeadlineError: it came first.
    """
    end_at = _end.get()
    limit = asyncio.timeout_at(None if end_at == math.inf else end_at)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise


def late() -> DeadlineError:
    return DeadlineError("the answer took too long")
