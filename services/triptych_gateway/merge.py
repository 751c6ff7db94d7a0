"""Several generate streams read as one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from triptych.wire import GenerateDelta

#: Deltas that may wait for the reader before generate is held back.
_DEPTH = 16
#: Streams that run at a time. One request of a thousand prompts would otherwise fill generate's
#: waiting room alone: refused as overload on an idle server, and again at every retry.
MAX_RUNNING = 64


def merged(streams: Sequence[AsyncGenerator[GenerateDelta, None]]) -> "OneStream | MergedDeltas":
    """The deltas of ``streams`` as they come; of one, without a task and a queue between."""
    return OneStream(streams[0]) if len(streams) == 1 else MergedDeltas(streams)


class OneStream:
    """What ``MergedDeltas`` is for one stream."""

    def __init__(self, stream: AsyncGenerator[GenerateDelta, None]) -> None:
        self._stream = stream
        self._is_stopped = False

    def __aiter__(self) -> AsyncIterator[tuple[int, GenerateDelta]]:
        return self

    async def __anext__(self) -> tuple[int, GenerateDelta]:
        if self._is_stopped:
            raise StopAsyncIteration
        return 0, await anext(self._stream)

    def stop(self, indexes: Iterable[int]) -> None:
        """Nothing more comes after this; ``aclose`` aborts the request."""
        self._is_stopped = self._is_stopped or 0 in indexes

    async def aclose(self) -> None:
        await self._stream.aclose()


class MergedDeltas:
    """The deltas of several streams as they come, each with its stream's index.

    Of many streams, the first start at once and each later one when another has ended.
    Closing it, or ``stop`` for one stream, closes the streams, which aborts their requests.
    """

    def __init__(self, streams: Sequence[AsyncGenerator[GenerateDelta, None]]) -> None:
        self._items: asyncio.Queue[tuple[int, GenerateDelta | Exception | None]]
        self._items = asyncio.Queue(_DEPTH)
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._open = set(range(len(streams)))
        self._tasks = [
            asyncio.create_task(self._pump(index, each)) for index, each in enumerate(streams)
        ]

    def __aiter__(self) -> AsyncIterator[tuple[int, GenerateDelta]]:
        return self

    async def __anext__(self) -> tuple[int, GenerateDelta]:
        while self._open:
            index, item = await self._items.get()
            if index not in self._open:
                continue
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return index, item
            self._open.discard(index)
        raise StopAsyncIteration

    def stop(self, indexes: Iterable[int]) -> None:
        """Abort what still runs of these streams; nothing more comes from them."""
        for index in indexes:
            self._open.discard(index)
            self._tasks[index].cancel()

    async def aclose(self) -> None:
        """Abort everything and wait until it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, index: int, deltas: AsyncGenerator[GenerateDelta, None]) -> None:
        end: Exception | None = None
        try:
            async with self._slots, contextlib.aclosing(deltas):
                async for delta in deltas:
                    await self._items.put((index, delta))
        except Exception as error:  # noqa: BLE001  # handed to the reader, which raises it
            end = error
        await self._items.put((index, end))
