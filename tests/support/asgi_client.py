"""A client of a streamed answer, without a server between."""

import asyncio

from starlette.types import Message

from triptych import sse


class Client:
    """What an ASGI server is to a stream; ``turns`` of the event loop that each ``send`` takes."""

    def __init__(self, turns: list[int], *, is_gone_after: int | None = None) -> None:
        self.parts: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_stalled = asyncio.Event()
        self._turns = iter(turns)
        self._num_left = is_gone_after
        self._gone = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        if not self.reads.is_set():
            self.is_stalled.set()
            await self.reads.wait()
        for _ in range(next(self._turns, 0)):
            await asyncio.sleep(0)
        self.parts.append(message["body"])
        if len(self.parts) == self._num_left:
            self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def read(self, response: sse.EventStream) -> dict[str, str]:
        """Read to the end; what the request's log line would say."""
        notes: dict[str, str] = {}
        await response({"type": "http", "triptych.notes": notes}, self.receive, self.send)
        return notes
