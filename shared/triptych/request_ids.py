"""Request ids: taken from a caller when sane, else made, and carried through every hop."""

import re
import secrets

HEADER = "x-request-id"
#: Characters of an id that a caller over HTTP may give. Hops carry it with a prefix and a number.
MAX_GIVEN = 128
_MAX_CARRIED = MAX_GIVEN + 32
_SANE = re.compile(r"[A-Za-z0-9._:/+=-]+")


def new_request_id() -> str:
    return secrets.token_hex(8)


def prefixed_id(prefix: str, request_id: str | None) -> str:
    """The id in a reply: ``request_id`` (else a new one) after ``prefix``, never doubled."""
    base = request_id or new_request_id()
    return base if base.startswith(prefix) else prefix + base


def accept_request_id(given: str | None, *, max_len: int = _MAX_CARRIED) -> str:
    """``given`` if it is short and plain enough for logs and headers, else a new id."""
    return given if given and is_sane(given, max_len=max_len) else new_request_id()


def is_sane(given: str, *, max_len: int = _MAX_CARRIED) -> bool:
    """Short and plain enough for logs and headers."""
    return len(given) <= max_len and _SANE.fullmatch(given) is not None
