"""The examples of the documentation that need these clients run as they stand."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.doc_blocks import ROOT, Block, pages, read_blocks
from support.doc_runs import run_blocks
from support.stack import Stack, running_stack

PAGES = {
    page: blocks
    for page in pages()
    if (blocks := [each for each in read_blocks(page) if each.marks.get("no-run") == "clients"])
}


@pytest.fixture(scope="module")
def open_stack(server_python: str) -> Iterator[Stack]:
    """A stack without a key, as `make serve` gives it."""
    with running_stack(python=server_python) as started:
        yield started


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(open_stack: Stack, server_python: str, tmp_path: Path, page: str) -> None:
    blocks = [
        dataclasses.replace(block, code=with_server_python(block.code, server_python))
        for block in joined(PAGES[page])
    ]
    run_blocks(blocks, open_stack, tmp_path, cwd=ROOT)


def with_server_python(code: str, server_python: str) -> str:
    return re.sub(r"(\.\./)*\.venv/bin/python", str(Path(server_python).absolute()), code)


def joined(blocks: list[Block]) -> list[Block]:
    """Blocks of the shell in a row as one: a reader stays in the folder that the first enters."""
    found: list[Block] = []
    for block in blocks:
        if found and block.language == found[-1].language == "sh":
            found[-1] = dataclasses.replace(found[-1], code=found[-1].code + block.code)
        else:
            found.append(block)
    return found
