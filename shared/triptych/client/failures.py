"""Failed HTTP exchanges as the error tree."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from triptych.errors import (
    LEAVES,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    TriptychError,
    UnavailableError,
)


class _Detail(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""
    type: Any = None
    param: Any = None
    code: Any = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    error: _Detail


@contextmanager
def http_errors(server: str) -> Iterator[None]:
    """Raises a failed exchange with ``server`` as one of the error tree."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnavailableError(f"{server} is not reachable") from error
    except httpx.TimeoutException as error:
        raise DeadlineError(f"{server} did not answer in time") from error
    except httpx.TransportError as error:
        raise UnavailableError(f"{server} broke off: {error}") from error


def error_of_answer(status: int, body: bytes, retry_after: str | None) -> TriptychError:
    """The error that a status other than 2xx means, with the server's own words."""
    detail = _detail(body)
    kind = _leaf(status, detail.code)
    return kind(
        detail.message or f"the server answered with status {status}",
        param=detail.param if isinstance(detail.param, str) else None,
        retry_after_s=_seconds(retry_after),
    )


def error_of_event(data: bytes) -> TriptychError:
    """The error that ended a stream."""
    detail = _detail(data)
    known = [leaf for leaf in LEAVES if leaf.code == detail.code and leaf.type == detail.type]
    return (known or [InternalError])[0](
        detail.message or "the stream ended with an error",
        param=detail.param if isinstance(detail.param, str) else None,
    )


def _detail(body: bytes) -> _Detail:
    try:
        return msgspec.json.decode(body, type=_Body).error
    except msgspec.DecodeError:
        return _Detail()


def _leaf(status: int, code: object) -> type[TriptychError]:
    same = [leaf for leaf in LEAVES if leaf.http_status == status]
    exact = [leaf for leaf in same if leaf.code == code]
    return (exact or same or [InvalidRequestError if status < 500 else InternalError])[0]


def _seconds(retry_after: str | None) -> float | None:
    """``Retry-After`` in seconds; a date, which our servers do not send, counts as none."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
