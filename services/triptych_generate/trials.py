"""Compiles grammars on trial in a process of its own, which ends when one takes too long."""

import asyncio
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass

import msgspec

from triptych.errors import InternalError, InvalidRequestError, TriptychError, UnavailableError
from triptych.wire import StructuredOutputs
from triptych_generate.compile_process import LENGTH, Start, Verdict, frame

#: Beyond a trial's own time: starting the process, loading the library, reading the vocabulary.
_START_S = 20.0
#: For an idle or dying process to be gone; after that it is killed.
_END_S = 0.5
_PARAM = "sampling_params.structured_outputs"


@dataclass(frozen=True, slots=True)
class _Process:
    """A running compile process and the connection to it."""

    child: subprocess.Popen[bytes]
    reader: StreamReader
    writer: StreamWriter


class Trials:
    """One process that knows one vocabulary; started at the first trial, and again after a death.

    xgrammar's compiler has no limit of time or memory and cannot be interrupted. A grammar that a
    trial has passed can be compiled in this process: it takes as long as it took there.
    """

    def __init__(self, tokens: list[bytes], *, timeout_s: float, memory_bytes: int) -> None:
        self._start = Start(tokens=tokens, timeout_s=timeout_s, memory_bytes=memory_bytes)
        self._process: _Process | None = None
        self._turn = asyncio.Lock()

    async def run(self, outputs: StructuredOutputs) -> int:
        """The size in bytes of the compiled grammar; one trial at a time.

        Raises:
            InvalidRequestError: it cannot be compiled, or takes too long or too much memory.
            InternalError: the process could not be started.
            UnavailableError: it was ended from outside.
        """
        async with self._turn:
            verdict = await self._ask(outputs)
        if verdict.error is not None:
            raise InvalidRequestError(
                f"{verdict.where} cannot be compiled: {verdict.error}", param=verdict.where
            )
        return verdict.num_bytes

    async def close(self) -> None:
        """End the process; a later trial starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.writer.close()  # ends it when it is idle; one that has died is only waited for
        await asyncio.to_thread(_end, process.child)

    async def _ask(self, outputs: StructuredOutputs) -> Verdict:
        process = await self._started()
        is_answered = False
        try:
            async with asyncio.timeout(self._start.timeout_s + _START_S):
                process.writer.write(frame(outputs))
                header = await process.reader.readexactly(LENGTH.size)
                body = await process.reader.readexactly(LENGTH.unpack(header)[0])
            is_answered = True
            return msgspec.msgpack.decode(body, type=Verdict)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            await self.close()
            raise self._death(process.child.returncode) from error
        finally:
            if not is_answered:  # also when cancelled: its answer would be taken for the next one's
                await self.close()

    async def _started(self) -> _Process:
        if self._process is not None and self._process.child.poll() is not None:
            await self.close()
        if self._process is None:
            self._process = await _begin()
            self._process.writer.write(frame(self._start))
        return self._process

    def _death(self, returncode: int | None) -> TriptychError:
        """Why the process ended under a trial: its alarm, its grammar, or something else."""
        if returncode == -signal.SIGALRM:
            why = f"it takes longer to compile than {self._start.timeout_s:g} s, the limit"
        elif returncode in {-signal.SIGSEGV, -signal.SIGABRT}:
            why = f"it needs more than {self._start.memory_bytes:,} bytes, or breaks the compiler"
        else:
            message = f"the compile process ended with status {returncode}"
            return UnavailableError(message, retry_after_s=1)
        return InvalidRequestError(f"structured_outputs cannot be compiled: {why}", param=_PARAM)


async def _begin() -> _Process:
    """A process that waits for its vocabulary.

    Raises:
        InternalError: it does not start.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            child = _spawn(theirs.fileno())
        except OSError as error:
            ours.close()
            raise InternalError("the compile process does not start") from error
    return _Process(child, *await asyncio.open_unix_connection(sock=ours))


def _spawn(connection: int) -> "subprocess.Popen[bytes]":
    """``subprocess`` does it by vfork, within two milliseconds.

    An event loop may fork instead (uvloop does): that copies the page tables of the model, and runs
    gRPC's fork handlers, which complain where other threads use gRPC.
    """
    command = [sys.executable, "-m", "triptych_generate.compile_process"]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=connection, stdout=connection, stderr=null)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Wait until ``child`` is gone, and after a bound kill it."""
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
