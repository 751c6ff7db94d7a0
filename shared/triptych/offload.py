"""Where work runs: small work on the event loop, large work in a thread."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Bodies up to this size (bytes) are rendered or derendered in well under a millisecond.
INLINE_BYTES = 8192


async def offload(work: Callable[[], _T], *, is_large: bool) -> _T:
    """``work()``; in a thread where it would hold the event loop for a millisecond or more."""
    return await asyncio.to_thread(work) if is_large else work()


async def offload_body(body: bytes, work: Callable[[], _T]) -> _T:
    """``work()`` on ``body``, judged by the body's size."""
    return await offload(work, is_large=is_large_body(body))


def is_large_body(body: bytes) -> bool:
    """Whether rendering or derendering ``body`` would hold the event loop for a millisecond."""
    return len(body) > INLINE_BYTES
