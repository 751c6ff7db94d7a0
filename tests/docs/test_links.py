"""Links between the pages lead somewhere, and every page is in the site's navigation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.doc_blocks import ROOT, pages

PAGES = [*pages(), "CHANGELOG.md", "tests/docs/README.md"]
_LINK = re.compile(r"(?:\]\(|src=\")(?![a-z]+:)([^)\"#\s]*)(?:#([^)\s]*))?[)\"]")
_FENCED = re.compile(r"(?ms)^ *```.*?^ *```$")
#: Pages of the site that do not lie in docs/.
OUTSIDE = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = _FENCED.sub("", (ROOT / page).read_text())
    for target, anchor in _LINK.findall(text):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{page} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub and MkDocs both give to the page's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", _FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_anchor_of_a_heading() -> None:
    assert "the-cpu-kernels" in anchors(ROOT / "docs/generate.md")
    assert "where-this-differs-from-vllm-033" in anchors(ROOT / "docs/logprobs.md")


def test_navigation_has_every_page_and_no_other() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    docs = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    decisions = {page for page in docs if re.match(r"decisions/\d", page)}
    assert set(leaves(settings["nav"])) == docs - decisions | OUTSIDE


def leaves(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from leaves(value)


def test_pages_load_nothing_from_elsewhere() -> None:
    for page in PAGES:
        text = _FENCED.sub("", (ROOT / page).read_text())
        assert not re.search(r"!\[[^]]*\]\(https?:|<(script|iframe|link)\b", text), page
