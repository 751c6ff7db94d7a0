"""The lens at ``/lens``: a page that shows answers token by token, out of files of this package."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath

from fastapi import FastAPI, Request, Response

from triptych.errors import NotFoundError

#: What the paths of the page begin with. They hold no secret, so no key is asked for them.
LENS_PREFIX = "/lens"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: The page loads its own files and calls its own gateway, and nothing else.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
#: A browser keeps the files and asks each time whether they are still the same.
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    headers: Mapping[str, str]

    def response(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def mount_lens(app: FastAPI) -> None:
    """Add ``/lens/`` and its files to ``app``."""
    files = _read_files()

    @app.get("/lens", include_in_schema=False)
    async def to_lens() -> Response:
        return Response(status_code=307, headers={"location": "lens/"})

    @app.get("/lens/{name:path}", include_in_schema=False)
    async def lens(request: Request, name: str) -> Response:
        file = files.get(name or "index.html")
        if file is None:
            raise NotFoundError(f"the lens has no file {name[:100]!r}")
        return file.response(request)


def _read_files() -> dict[str, _File]:
    folder = resources.files("triptych_gateway") / "lens"
    files = (each for each in folder.iterdir() if PurePath(each.name).suffix in _TYPES)
    return {each.name: _file(each.name, each.read_bytes()) for each in files}


def _file(name: str, body: bytes) -> _File:
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    kind = _TYPES[PurePath(name).suffix]
    return _File(body, {**_HEADERS, "content-type": kind, "etag": etag})
