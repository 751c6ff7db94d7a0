"""The lens at ``/lens``: a page that shows answers token by token, out of files of this package."""

from importlib import resources
from pathlib import PurePath

from fastapi import FastAPI, Request, Response

from triptych.errors import NotFoundError
from triptych.pages import TYPES, PageFile, page_file, page_policy

#: What the paths of the page begin with. They hold no secret, so no key is asked for them.
LENS_PREFIX = "/lens"


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


def _read_files() -> dict[str, PageFile]:
    folder = resources.files("triptych_gateway") / "lens"
    files = (each for each in folder.iterdir() if PurePath(each.name).suffix in TYPES)
    policy = page_policy()
    return {each.name: page_file(each.name, each.read_bytes(), policy) for each in files}
