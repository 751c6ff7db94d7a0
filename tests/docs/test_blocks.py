"""Every code block of the documentation is run, or checked as far as it can be without."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from support.doc_blocks import (
    EXCERPTS,
    LANGUAGES,
    REASONS,
    ROOT,
    Block,
    pages,
    parse_blocks,
    read_blocks,
)
from support.run_doc_page import compare

BLOCKS = [block for page in pages() for block in read_blocks(page)]
#: The first lines of request bodies; such a block is posted to the running stack.
REQUESTS = {"messages", "prompt", "token_ids", "generate_response", "generate_chunk"}


def blocks(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_blocks_have_a_known_language_and_known_marks() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, block.place
        allowed = {"sh": {"no-run", "fails", "in", "excerpt"}, "python": {"no-run", "excerpt"}}
        allowed |= {"json": {"post", "excerpt"}, "output": {"no-run"}}
        assert block.marks.keys() <= allowed.get(block.language, {"excerpt"}), block.place
        assert block.marks.get("no-run", "server") in REASONS, block.place


def test_fences_come_in_pairs() -> None:
    for page in pages():
        text = (ROOT / page).read_text()
        fences = len(re.findall(r"^ *```", text, re.MULTILINE))
        assert fences == 2 * len(parse_blocks(page, text)), page


def test_shell_blocks_parse() -> None:
    for block in blocks("sh"):
        done = subprocess.run(
            ["bash", "-n"], check=False, input=block.code, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), block.place


def test_python_blocks_compile() -> None:
    for block in blocks("python"):
        if "excerpt" not in block.marks:
            compile(block.code, block.place, "exec")


def test_data_blocks_parse() -> None:
    for block in blocks("json"):
        body = json.loads(block.code)
        is_request = isinstance(body, dict) and bool(REQUESTS & body.keys())
        assert ("post" in block.marks) >= is_request, f"{block.place}: a body, but not posted"
    for block in blocks("yaml"):
        assert list(yaml.safe_load_all(block.code)), block.place
    for block in blocks("toml"):
        assert tomllib.loads(block.code), block.place


def test_blocks_that_generate_bound_the_answer() -> None:
    """An answer of chance may run to the end of the context: minutes, on a CPU."""
    asks = re.compile(
        r"completions\.create\(|/completions(?!/)|/generate\b(?!.* @)|GenerateRequest\("
        r"|\.(?:stream_)?(?:chat|complete)\(|triptych chat"
    )
    served = [block for block in BLOCKS if block.is_run and "fails" not in block.marks]
    asking = [b for b in served if asks.search(f"{b.marks.get('post', '')}\n{b.code}")]
    assert len(asking) > 10
    for block in asking:
        assert re.search(r"max[_-](completion_)?tokens", block.code), block.place


def test_excerpts_are_in_the_files_that_have_tests() -> None:
    sources = [
        path.read_text()
        for folder in ("examples", "proto")
        for path in (ROOT / folder).rglob("*.*")
        if is_source(path)
    ]
    for block in BLOCKS:
        if block.language in EXCERPTS or "excerpt" in block.marks:
            lines = unindented(block.code)
            assert any(lines in unindented(source) for source in sources), block.place


def is_source(path: Path) -> bool:
    suffixes = {".go", ".ts", ".mts", ".js", ".mjs", ".proto", ".py", ".sh", ".json"}
    return path.suffix in suffixes and "node_modules" not in path.parts


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def test_marks_and_places_are_read() -> None:
    text = (
        "# A\n\n```sh no-run=docker\nls\n```\n\n1. x\n\n    ```json post=8000/x\n    {}\n    ```\n"
    )
    shell, data = parse_blocks("a.md", text)
    assert (shell.place, shell.language, shell.code) == ("a.md:3", "sh", "ls\n")
    assert (shell.marks, shell.is_run) == ({"no-run": "docker"}, False)
    assert (data.place, data.code, data.is_run) == ("a.md:9", "{}\n", True)


@pytest.mark.parametrize("got", ["a  1.2503 end\nb", "a 1.25 — end b\n"])
def test_documented_output_allows_what_may_differ(got: str) -> None:
    compare("a 1.25… end\nb\n", got)


@pytest.mark.parametrize("got", ["a 1.26 end b", "a 1.25 end", "a 1.25 end b c", "a one end b"])
def test_documented_output_must_be_the_output(got: str) -> None:
    with pytest.raises(ValueError, match="the page says"):
        compare("a 1.25… end\nb\n", got)
