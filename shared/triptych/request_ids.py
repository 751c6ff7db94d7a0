"""Request ids: taken from a caller when sane, else made, and carried through every hop."""

import re
import secrets

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def new_request_id() -> str:
    return secrets.token_hex(8)


def prefixed_id(prefix: str, request_id: str | None) -> str:
    """The id in a reply: ``request_id`` (else a new one) after ``prefix``, never doubled."""
    base = request_id or new_request_id()
    return base if base.startswith(prefix) else prefix + base


def accept_request_id(given: str | None) -> str:
    """``given`` if it is short and plain enough for logs and headers, else a new id."""
    return given if given and _SANE.fullmatch(given) else new_request_id()
