"""A command in a pseudo-terminal of its own, as a person sits before it."""

import contextlib
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TIMEOUT_S = 60


@dataclass(slots=True)
class Terminal:
    """``shown``: all that the command wrote so far."""

    process: subprocess.Popen[bytes]
    _fd: int
    shown: str = ""
    _seen: int = 0

    def until(self, text: str) -> str:
        """What is written after the last call, up to ``text``, which has to come."""
        deadline = time.monotonic() + _TIMEOUT_S
        while text not in self.shown[self._seen :]:
            assert self._read(max(0.0, deadline - time.monotonic())), (
                f"{text!r} did not come:\n{self.shown}"
            )
        start = self._seen
        self._seen = self.shown.index(text, start) + len(text)
        return self.shown[start : self._seen]

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait(self) -> int:
        """The command's exit status, after it wrote all."""
        status = self.process.wait(_TIMEOUT_S)
        while self._read(0):
            pass
        return status

    def _read(self, timeout_s: float) -> bool:
        """Whether something was written in time; it is added to ``shown``."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return False
        self.shown += os.read(self._fd, 65536).decode(errors="replace").replace("\r\n", "\n")
        return True


@contextlib.contextmanager
def terminal(command: Sequence[str], **environment: str) -> Iterator[Terminal]:
    """``command`` with a terminal that has colours, from which Ctrl-C reaches it."""
    fd, child_fd = pty.openpty()
    termios.tcsetwinsize(fd, (40, 100))
    name = os.ttyname(child_fd)  # kept open: it shall not close before the command opens it
    # the first terminal that a session's leader opens becomes its own
    opening = f'exec "$@" <{name} >{name} 2>&1'
    process = subprocess.Popen(
        ["sh", "-c", opening, "sh", *command],
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment},
    )
    try:
        yield Terminal(process, fd)
    finally:
        process.kill()
        process.wait()
        os.close(child_fd)
        os.close(fd)
