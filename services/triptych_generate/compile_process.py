"""The process in which a grammar is compiled first: if it takes too long, only this process dies.

Started by ``trials``. On standard input: a ``Vocabulary``-like ``Start``, then structured outputs;
on standard output one ``Verdict`` for each. A message is its length (uint32, little-endian) and
msgpack.
"""

import contextlib
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from triptych.wire import StructuredOutputs
from triptych_generate.bindings import GrammarError, compile_grammar, make_compiler

LENGTH = struct.Struct("<I")
_T = TypeVar("_T")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The vocabulary by id, and the limits of each compile: seconds, and bytes beyond the start."""

    tokens: list[bytes]
    timeout_s: float
    memory_bytes: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the compiled grammar, or why and where it cannot be compiled."""

    num_bytes: int = 0
    error: str | None = None
    where: str = ""


def main() -> None:
    # tvm_ffi imports torch where it is installed, for conversions that are not used here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    start = _read(sys.stdin.buffer, Start)
    if start is None:
        return
    compiler = make_compiler(start.tokens)
    _limit_memory(start.memory_bytes)
    while (outputs := _read(sys.stdin.buffer, StructuredOutputs)) is not None:
        # Its default action ends the process, also inside the library's native code.
        signal.setitimer(signal.ITIMER_REAL, start.timeout_s)
        verdict = _try(compiler, outputs, memory_bytes=start.memory_bytes)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(sys.stdout.buffer, verdict)


def frame(message: msgspec.Struct) -> bytes:
    """``message`` as it travels."""
    encoded = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(encoded)) + encoded


def _try(compiler: object, outputs: StructuredOutputs, *, memory_bytes: int) -> Verdict:
    try:
        return Verdict(num_bytes=compile_grammar(compiler, outputs).memory_size_bytes())
    except GrammarError as error:
        message = error.message
        if "bad_alloc" in message:
            message = f"it needs more than {memory_bytes:,} bytes of memory, the limit"
        return Verdict(error=message, where=error.where)


def _read(stream: BinaryIO, shape: type[_T]) -> _T | None:
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return msgspec.msgpack.decode(stream.read(LENGTH.unpack(header)[0]), type=shape)


def _write(stream: BinaryIO, message: msgspec.Struct) -> None:
    stream.write(frame(message))
    stream.flush()


def _limit_memory(num_bytes: int) -> None:
    """Refuse allocations that grow the process by more; where Linux's figures are not, no limit."""
    with contextlib.suppress(OSError, ValueError):
        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = num_pages * resource.getpagesize() + num_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
