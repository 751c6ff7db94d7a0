"""The gateway's half of a session: one call to a panel that carries all requests."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc.aio

from triptych.errors import UnavailableError

_CommandsT = TypeVar("_CommandsT")
_StepT = TypeVar("_StepT")


class PanelSession(ABC, Generic[_CommandsT, _StepT]):
    """All requests of this gateway at one panel, in one bidirectional call.

    What is sent goes out in batches. The first request opens the call, and opens it again after it
    ended: by an error, by the server, or by ``close``.
    """

    def __init__(
        self, name: str, open_call: Callable[[], grpc.aio.StreamStreamCall[_CommandsT, _StepT]]
    ) -> None:
        self._name = name
        self._open_call = open_call
        self._is_open = False
        self._tasks: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    def _take_commands(self) -> _CommandsT | None:
        """What waits to be sent, or its first part; None when nothing does."""

    @abstractmethod
    def _take_step(self, step: _StepT) -> None:
        """Hand on what came."""

    @abstractmethod
    def _end(self, error: UnavailableError) -> None:
        """The call ended: its requests fail with ``error``."""

    def _wake(self) -> None:
        """There are commands to take; those of one turn of the event loop go out together."""
        if not self._is_open:
            self._open()
        self._news.set()

    def _open(self) -> None:
        self._is_open = True
        self._news = asyncio.Event()
        self._error = UnavailableError(f"the session with {self._name} broke", retry_after_s=1)
        call = self._call = self._open_call()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]
        self._tasks[0].add_done_callback(lambda _: call.cancel())  # nothing would be sent any more
        self._tasks[1].add_done_callback(self._call_ended)

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # _read says it
            while True:
                await self._news.wait()
                self._news.clear()
                while (commands := self._take_commands()) is not None:
                    await self._call.write(commands)

    async def _read(self) -> None:
        try:
            step: Any
            while (step := await self._call.read()) is not grpc.aio.EOF:
                self._take_step(step)
        except grpc.aio.AioRpcError as broken:
            self._error = self._break_of(broken)

    def _call_ended(self, _: asyncio.Task[None]) -> None:
        self._is_open = False
        self._call.cancel()
        self._tasks[0].cancel()
        self._end(self._error)

    def _break_of(self, broken: grpc.aio.AioRpcError) -> UnavailableError:
        if broken.code() is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"{self._name} is not reachable", retry_after_s=1)
        details = f"{broken.code().name}: {broken.details()}"
        return UnavailableError(f"the session with {self._name} broke ({details})", retry_after_s=1)
