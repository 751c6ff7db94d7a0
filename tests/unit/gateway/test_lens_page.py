"""The lens's files: how they are served, and that they need nothing from elsewhere."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import triptych
from support.net import http_client
from triptych.http import create_app
from triptych_gateway.lens_page import mount_lens

ROOT = Path(triptych.__file__).parents[2]
FOLDER = ROOT / "services" / "triptych_gateway" / "lens"
FILES = sorted(path.name for path in FOLDER.iterdir())
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: A name in the SVG, which nothing loads.
NAMESPACE = "http://www.w3.org/2000/svg"


def app() -> FastAPI:
    made = create_app("gateway", model=("m", 1))
    mount_lens(made)
    return made


async def get(path: str, **headers: str) -> httpx.Response:
    async with http_client(app()) as client:
        return await client.get(path, headers=headers)


async def test_lens_is_found_under_any_prefix() -> None:
    answer = await get("/lens")
    assert (answer.status_code, answer.headers["location"]) == (307, "lens/")
    page = await get("/lens/")
    assert page.content == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("name", FILES)
async def test_file_is_served_with_its_type_and_policy(name: str) -> None:
    answer = await get(f"/lens/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(
        each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert {policy[kind] for kind in ("base-uri", "frame-ancestors")} == {"'none'"}
    again = await get(f"/lens/{name}", **{"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize("name", ["nothing.mjs", "../lens_page.py", "%2e%2e/lens_page.py", "a/b"])
async def test_nothing_else_is_served(name: str) -> None:
    answer = await get(f"/lens/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"]


@pytest.mark.parametrize("name", FILES)
def test_file_names_no_address_outside(name: str) -> None:
    text = (FOLDER / name).read_text().replace(NAMESPACE, "")
    assert re.findall(r"\w+://[^\s\"'`)]*|[\"'(]//\w", text) == []
    assert "@import" not in text


def test_every_file_that_is_named_is_there_and_used() -> None:
    named = {"index.html"}
    for name in FILES:
        text = (FOLDER / name).read_text()
        named |= set(re.findall(r"""(?:from |import )"\./([\w.]+)\"""", text))
        named |= set(re.findall(r"""(?:src|href)="([\w.]+)\"""", text))
    assert named == set(FILES)


def test_page_has_no_code_or_style_that_the_policy_refuses() -> None:
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []


def test_wheel_holds_every_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    for name in FILES:
        assert packed[f"triptych_gateway/lens/{name}"] == (FOLDER / name).read_bytes()
