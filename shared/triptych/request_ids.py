"""Request ids: taken from a caller when sane, else made, and carried through every hop."""

import re
import secrets

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def new_request_id() -> str:
    return secrets.token_hex(8)


def accept_request_id(given: str | None) -> str:
    """``given`` if it is short and plain enough for logs and headers, else a new id."""
    return given if given and _SANE.fullmatch(given) else new_request_id()
