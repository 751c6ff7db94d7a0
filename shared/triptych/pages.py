"""Files of pages for browsers, which load their own files and call their own server alone."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from fastapi import Request, Response

#: Content types by the end of a file's name.
TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    body: bytes
    headers: Mapping[str, str]

    def response(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def page_file(name: str, body: bytes, policy: str) -> PageFile:
    """A file that a browser keeps and asks for each time whether it is still the same.

    Args:
        name: its end says the content type.
        body: what it holds.
        policy: its page's, as of ``page_policy``.
    """
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": policy,
        "content-type": TYPES[PurePath(name).suffix],
        "etag": f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return PageFile(body, headers)


def page_policy(*, style: str = "'self'", images: str = "'self'") -> str:
    """The content security policy of a page, with the sources of its styles and images."""
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src {style}",
            f"img-src {images}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
