"""Server-sent events read from bytes that come in any pieces, without I/O."""

from collections.abc import Iterator

from triptych.client.failures import error_of_event
from triptych.errors import UnavailableError


class EventReader:
    """Feed it what comes; it gives the data of each event up to ``[DONE]``."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_error = False
        self.is_done = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The data of the events that are complete with ``part``.

        Raises:
            TriptychError: the server ended the stream with this error.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if not self.is_done and (data := self._take(line.removesuffix(b"\r"))) is not None:
                yield data

    def end(self) -> None:
        """To be called when no more comes.

        Raises:
            UnavailableError: the stream was not complete.
        """
        if not self.is_done:
            raise UnavailableError("the server ended the stream early")

    def _take(self, line: bytes) -> bytes | None:
        """The data of the event that ``line`` ends, if it ends one."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._is_error = value == b"error"
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            if self._is_error:
                raise error_of_event(data)
            self.is_done = data == b"[DONE]"
            return None if self.is_done else data
        return None
