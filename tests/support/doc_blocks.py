"""The fenced code blocks of README.md, CONTRIBUTING.md and docs/, with their marks.

tests/docs/README.md says what a block's first line may hold.
"""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Why a block is not run: the only values of the mark ``no-run``.
REASONS = frozenset(
    {
        "install",  # installs, or tests the whole project
        "server",  # starts a server that stays
        "terminal",  # talks with a person
        "placeholder",  # has names that a reader fills in
        "clients",  # needs the environment of `make test-clients`
        "other-engine",  # needs vLLM or another program that is not part of the project
        "docker",
        "kubernetes",
        "gpu",
    }
)
RUN = frozenset({"python", "sh"})
#: Only as excerpts of files that have tests of their own.
EXCERPTS = frozenset({"go", "typescript", "javascript", "proto"})
LANGUAGES = RUN | EXCERPTS | {"json", "yaml", "toml", "output", "text"}
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<info>.*)\n(?P<code>(?s:.*?))^(?P=indent)```$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block; ``marks`` maps a mark to its value, empty for a mark without one."""

    page: str
    line: int
    language: str
    code: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the block takes part when its page is run."""
        if self.language == "json":
            return "post" in self.marks
        return self.language in RUN | {"output"} and not {"no-run", "excerpt"} & self.marks.keys()


def pages() -> list[str]:
    """Paths from the project's root of all pages of documentation."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *docs]


def read_blocks(page: str) -> list[Block]:
    """All blocks of ``page``, in order."""
    return parse_blocks(page, (ROOT / page).read_text())


def parse_blocks(page: str, text: str) -> list[Block]:
    """All blocks of a page with the given text; ``line`` is that of the opening fence."""
    found = []
    for match in _BLOCK.finditer(text):
        language, *marks = match["info"].split() or [""]
        pairs = (mark.partition("=") for mark in marks)
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start()) + 1,
                language=language,
                code=textwrap.dedent(match["code"]),
                marks={name: value for name, _, value in pairs},
            )
        )
    return found
