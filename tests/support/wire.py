"""A transport without a network."""

import asyncio


class Wire(asyncio.Transport):
    """Keeps what is written, each part by itself: h2 looks at new settings once a part."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False
        self._used = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        self._used.set()

    def abort(self) -> None:
        self.is_aborted = True
        self._used.set()

    async def until_used(self) -> None:
        """Return when something is written, or the connection is aborted."""
        self._used.clear()
        async with asyncio.timeout(20):
            await self._used.wait()

    def take(self) -> list[bytes]:
        written, self.written = self.written, []
        return written
