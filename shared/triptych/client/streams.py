"""Streams of parts: iterate over one, and close it to end the answer early."""

from collections.abc import AsyncGenerator, Generator
from typing import Generic, Self, TypeVar

from triptych.client.closing import AsyncClosing, Closing

_T = TypeVar("_T")


class Stream(Closing, Generic[_T]):
    """Parts of an answer as they come. The request is sent when the first is asked for.

    Leaving ``with`` (or ``close``) before the end cancels the answer at the server.
    """

    def __init__(self, parts: Generator[_T, None, None]) -> None:
        self._parts = parts

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        return next(self._parts)

    def close(self) -> None:
        self._parts.close()


class AsyncStream(AsyncClosing, Generic[_T]):
    """``Stream`` for ``async for`` and ``async with``."""

    def __init__(self, parts: AsyncGenerator[_T, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._parts.aclose()
