"""Which pages of other origins may call a service from a browser."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

#: What a page may read of an answer's headers.
_EXPOSED = ["x-request-id", "retry-after"] + [
    f"x-ratelimit-{what}-{of}"
    for what in ("limit", "remaining", "reset")
    for of in ("requests", "tokens")
]


def with_cors(app: ASGIApp, origins: str | None) -> ASGIApp:
    """``app`` for pages of ``origins``, separated by commas; ``*``: of all; None: of none.

    No cookies are allowed for: a page sends its key in a header.
    """
    if origins is None:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[each.strip() for each in origins.split(",")],
        allow_methods=["GET", "POST", "PUT"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )
