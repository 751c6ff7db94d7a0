"""Running the blocks of a page of documentation against a stack, in a process of its own."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.doc_blocks import ROOT, Block
from support.stack import Stack

#: On a busy machine; a page takes seconds on a quiet one.
TIMEOUT_S = 400
RUNNER = ROOT / "tests/support/run_doc_page.py"


def run_blocks(blocks: Sequence[Block], stack: Stack, folder: Path, *, cwd: Path) -> None:
    """Run ``blocks`` in order in ``cwd``; fails with what the first that fails has written.

    Args:
        blocks: Of one page.
        stack: Takes the place of `make serve`.
        folder: An empty one, for the plan and curl's settings (4xx and 5xx are failures).
        cwd: Where the blocks run.
    """
    steps = [dataclasses.asdict(block) | {"place": block.place} for block in blocks]
    plan = folder / "plan.json"
    plan.write_text(at_the_stack(json.dumps(steps), stack))
    (folder / ".curlrc").write_text("fail-with-body\n")
    urls = {f"TRIPTYCH_{name}_URL": stack.gateway for name in ("SCORE", "CHAT", "BENCH")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, RUNNER, plan],
        check=False,
        cwd=cwd,
        env=os.environ | urls | {"PATH": path, "CURL_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
