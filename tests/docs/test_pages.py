"""The examples of every page run as they stand, in order, against the running stack."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.doc_blocks import Block, pages, read_blocks
from support.doc_runs import run_blocks
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

PAGES = {
    page: blocks
    for page in pages()
    if (blocks := [block for block in read_blocks(page) if block.is_run])
}


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(stack: Stack, tmp_path: Path, page: str) -> None:
    if missing := [tool for tool in ("curl", "jq") if needs(PAGES[page], tool)]:
        pytest.skip(f"needs {missing}")
    work = tmp_path / "work"
    work.mkdir()
    run_blocks(PAGES[page], stack, tmp_path, cwd=work)


def needs(blocks: Sequence[Block], tool: str) -> bool:
    """Whether a block uses ``tool`` and this machine does not have it."""
    shells = (block.code for block in blocks if block.language == "sh")
    return not shutil.which(tool) and any(re.search(rf"\b{tool}\b", code) for code in shells)
