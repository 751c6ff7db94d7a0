"""Messages within the body of a gRPC call: five bytes before each (its "gRPC over HTTP/2")."""

from collections.abc import Iterator

from triptych.errors import BodyTooLargeError, InvalidRequestError
from triptych.rpc_options import MAX_MESSAGE_BYTES

_PREFIX_LEN = 5


def framed(message: bytes) -> bytes:
    """``message`` as it stands in a body, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class MessageReader:
    """Finds the messages of a body that comes in any pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that ``data`` ends, each taken off when it is asked for.

        Raises:
            InvalidRequestError: one is compressed, which nobody offered.
            BodyTooLargeError: one is over the limit.
        """
        received = self._received
        received += data
        while len(received) >= _PREFIX_LEN:
            end = _PREFIX_LEN + int.from_bytes(received[1:_PREFIX_LEN], "big")
            if received[0]:
                raise InvalidRequestError("a message is compressed")
            if end > MAX_MESSAGE_BYTES:
                raise BodyTooLargeError(
                    f"a message has {end:,} bytes, limit is {MAX_MESSAGE_BYTES:,}"
                )
            if len(received) < end:
                return
            message = bytes(received[_PREFIX_LEN:end])
            del received[:end]
            yield message
