"""The examples of every page run as they stand, in order, against the running stack."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.doc_blocks import ROOT, Block, pages, read_blocks
from support.stack import Stack

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

RUNNER = ROOT / "tests/support/run_doc_page.py"
PAGES = {
    page: blocks
    for page in pages()
    if (blocks := [block for block in read_blocks(page) if block.is_run])
}


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(stack: Stack, tmp_path: Path, page: str) -> None:
    if missing := [
        tool for tool in ("curl", "jq") if uses(PAGES[page], tool) and not shutil.which(tool)
    ]:
        pytest.skip(f"needs {missing}")
    steps = [dataclasses.asdict(block) | {"place": block.place} for block in PAGES[page]]
    plan = tmp_path / "plan.json"
    plan.write_text(at_the_stack(json.dumps(steps), stack))
    (tmp_path / ".curlrc").write_text("fail-with-body\n")
    (tmp_path / "work").mkdir()
    bin_dir = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_dir}:{os.environ['PATH']}",
        "CURL_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, RUNNER, plan],
        check=False,
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def uses(blocks: list[Block], tool: str) -> bool:
    return any(re.search(rf"\b{tool}\b", block.code) for block in blocks if block.language == "sh")


def at_the_stack(text: str, stack: Stack) -> str:
    """``text`` with the ports of `make serve` replaced by those of ``stack``."""
    text = re.sub(r'"post": "(\d+)/', r'"post": "http://127.0.0.1:\1/', text)
    addresses = {
        8000: stack.gateway,
        8001: stack.render,
        8002: stack.generate,
        8003: stack.derender,
        9001: stack.render_grpc,
        9002: stack.generate_grpc,
        9003: stack.derender_grpc,
    }
    for documented, real in addresses.items():
        here = real.removeprefix("http://")
        text = re.sub(rf"\b(127\.0\.0\.1|localhost):{documented}\b", here, text)
    return text
