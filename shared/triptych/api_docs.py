"""``/openapi.json`` and ``/docs``: a service's OpenAPI document, and Swagger UI out of local files.

The documents are written by ``make openapi``. Swagger UI's files are those of the package
``fastapi-offline``, so that the page needs no network; nothing else of that package is used.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from triptych.errors import NotFoundError
from triptych.pages import PageFile, page_file, page_policy

#: What the paths of the page begin with.
DOCS_PREFIX = "/docs"
#: Swagger UI writes styles into its page and draws its icons from data URLs.
_POLICY = page_policy(style="'self' 'unsafe-inline'", images="'self' data:")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>triptych {service}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")
_START = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
"""


def mount_api_docs(app: FastAPI, service: str) -> None:
    """Add both to ``app``. Where ``app.state.needs_key`` is true the document says so."""

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        body = _document(service, needs_key=bool(app.state.needs_key))
        return Response(body, media_type="application/json")

    @app.get(DOCS_PREFIX, include_in_schema=False)
    async def page(request: Request) -> Response:
        body = _PAGE.format(service=service).encode()
        return page_file("index.html", body, _POLICY).response(request)

    @app.get(DOCS_PREFIX + "/", include_in_schema=False)
    async def to_page() -> Response:
        return Response(status_code=307, headers={"location": f"..{DOCS_PREFIX}"})

    @app.get(DOCS_PREFIX + "/{name}", include_in_schema=False)
    async def file(request: Request, name: str) -> Response:
        found = _files().get(name)
        if found is None:
            raise NotFoundError(f"the page has no file {name[:100]!r}")
        return found.response(request)


@cache
def _document(service: str, *, needs_key: bool) -> bytes:
    file = resources.files("triptych") / "openapi" / f"{service}.json"
    made: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    if needs_key:
        made["security"] = [{"bearer": []}]
    return msgspec.json.encode(made)


@cache
def _files() -> Mapping[str, PageFile]:
    package = find_spec("fastapi_offline")
    assert package is not None, "a dependency of triptych"
    assert package.origin is not None
    static = Path(package.origin).parent / "static"
    bodies = {name: (static / name).read_bytes() for name in _SWAGGER} | {"start.js": _START}
    return {name: page_file(name, body, _POLICY) for name, body in bodies.items()}
