"""Failed gRPC calls as the error tree, for every client of the panels."""

from typing import Any, Protocol

import grpc
import msgspec

from triptych.errors import (
    LEAVES,
    DeadlineError,
    ErrorBody,
    InternalError,
    TriptychError,
    UnavailableError,
)

#: Trailing metadata: the error's body, and the seconds after which to try again.
ERROR_KEY = "triptych-error-bin"
RETRY_KEY = "retry-after"


class FailedCall(Protocol):
    """What a gRPC error has, blocking or not."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Any: ...


def from_rpc_error(error: FailedCall, target: str) -> TriptychError:
    """The tree's error for ``error``: the server's own if it sent one, else by status code."""
    sent: bytes | None = None
    retry_after_s = None
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            sent = value
        elif key == RETRY_KEY:
            retry_after_s = float(value)
    code = error.code()
    if sent is not None:
        return read_error(code.name, sent, retry_after_s)
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"{target} is not reachable", retry_after_s=1)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"{target} did not answer in time")
    return _leaf(code.name, None)(f"{target}: {error.details()}")


def read_error(grpc_code: str, body: bytes, retry_after_s: float | None) -> TriptychError:
    """The error that another server sent, as ``TriptychError.body`` made it."""
    detail = msgspec.json.decode(body, type=ErrorBody).error
    leaf = _leaf(grpc_code, detail.code)
    return leaf(detail.message, param=detail.param, retry_after_s=retry_after_s)


def _leaf(grpc_code: str, code: str | None) -> type[TriptychError]:
    same = [leaf for leaf in LEAVES if leaf.grpc_code == grpc_code]
    exact = [leaf for leaf in same if leaf.code == code]
    return (exact or same or [InternalError])[0]
