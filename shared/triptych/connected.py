"""Work that ends when its client leaves."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from triptych.errors import ClientGoneError


class WhileConnected:
    """``async with`` around work of the current task, which is cancelled when the client hangs up.

    Cancelling from outside is told from that as ``asyncio.timeout`` does it, so that the work needs
    no task of its own. The request's body must have been read.

    Raises:
        ClientGoneError: the client left first.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False
        self._num_cancels = 0

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        self._task = task
        self._num_cancels = task.cancelling()
        self._watch = asyncio.create_task(self._cancel_when_gone())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        is_ours = self._is_gone and self._task.uncancel() <= self._num_cancels
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise ClientGoneError("the client closed the connection") from error

    async def _cancel_when_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()
