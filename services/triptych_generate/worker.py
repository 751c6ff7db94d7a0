"""The one thread that does all torch work of an engine."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class Worker:
    """A daemon thread that runs calls in order.

    OpenMP keeps a team of threads for each thread that computes. Where the model was loaded on one
    thread and ran on another, there were more threads than cores, OpenMP gave up spinning, and a
    step took twice as long. So loading, self-tests and steps all run here.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def submit(self, call: Callable[[], _T]) -> "Future[_T]":
        """The future of ``call``, which runs after all earlier ones."""
        future: Future[_T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # it is raised where the result is read
                future.set_exception(error)

        self._calls.put(run)
        return future

    def _loop(self) -> None:
        while True:
            self._calls.get()()
