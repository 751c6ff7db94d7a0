"""Draining: a door that closes takes no new work and lets what runs end."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from triptych.errors import UnavailableError


class Drain:
    """The work in progress behind one door, a task each. Everything runs on one event loop."""

    def __init__(self, on_end: Callable[[float], None] | None = None) -> None:
        """``on_end`` gets the seconds that a piece of work took."""
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._has_begun = asyncio.Event()
        self.has_cut_off = False

    @property
    def is_draining(self) -> bool:
        return self._has_begun.is_set()

    @property
    def num_working(self) -> int:
        return len(self._tasks)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Around a piece of work, which is the current task.

        Raises:
            UnavailableError: the door is closed.
        """
        with self.turn():
            task = asyncio.current_task()
            assert task is not None, "work runs in a task"
            self._tasks.add(task)
            self._is_idle.clear()
            try:
                yield
            finally:
                self._tasks.discard(task)
                if not self._tasks:
                    self._is_idle.set()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around work that ends in this turn of the event loop.

        Raises:
            UnavailableError: the door is closed.
        """
        if self.is_draining:
            raise stopping_error()
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._on_end is not None:
                self._on_end(time.perf_counter() - start)

    def begin(self) -> None:
        """Take no new work from now on."""
        self._has_begun.set()

    async def until_begun(self) -> None:
        """Return when no new work is taken."""
        await self._has_begun.wait()

    async def until_idle(self) -> None:
        """Return when no work runs."""
        await self._is_idle.wait()

    def cut_off(self) -> int:
        """Cancel what still runs; each edge then says so to its client. How many these are."""
        self.has_cut_off = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)


def stopping_error() -> UnavailableError:
    return UnavailableError("the server is stopping", retry_after_s=1)
