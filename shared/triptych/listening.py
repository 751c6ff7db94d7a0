"""Where servers listen."""

import socket

from triptych.errors import SetupError


def bracketed(host: str) -> str:
    """``host`` as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there: one that is only bound leaves its port to whoever listens first.

    Raises:
        SetupError: the address cannot be had. Port 0 is any.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise SetupError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
