"""What MkDocs does not do by itself: pages and links outside of docs/, and marks of code blocks.

On the site README.md is the first page, and CONTRIBUTING.md and CHANGELOG.md are pages too. A file
of the repository that a page links to is copied to files/; a link to a folder becomes plain text.
"""

import os.path
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Pages that lie beside docs/, and their names on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")
LINK_TO_FOLDER = re.compile(r"\[([^]]+)\]\(([^):#\s]+)/?\)")
#: What a browser would load from elsewhere: not the links that a reader follows.
FETCH = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'> ]+"""
)
MARKED_FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/ and the files that pages link to."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for path in {path for page in files.documentation_pages() for path in _linked_files(page)}:
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they are on the site, and code blocks without marks for tests."""
    if page.file.src_uri == "decisions/README.md":
        markdown += _list_of_decisions()
    home = _repository_folder(page.file)
    markdown = LINK_TO_FOLDER.sub(
        lambda m: m[1] if _is_unlisted_folder(_resolve(home, m[2])) else m[0], markdown
    )
    here = os.path.dirname(page.file.src_uri)
    markdown = LINK.sub(
        lambda m: os.path.relpath(_site_name(_resolve(home, m[1])), here or "."), markdown
    )
    return MARKED_FENCE.sub(r"\1", markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    """Refuse a page that would load something from elsewhere."""
    if found := FETCH.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}")


def _list_of_decisions() -> str:
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]
    return "\n" + "\n".join(f"- [{t}]({p.name})" for t, p in zip(titles, pages, strict=True))


def _linked_files(page: File) -> Iterator[str]:
    home = _repository_folder(page)
    for target in LINK.findall(page.content_string):
        path = _resolve(home, target)
        if _site_name(path).startswith("files/") and (ROOT / path).is_file():
            yield path


def _repository_folder(page: File) -> str:
    return (
        ""
        if page.src_uri in OUTSIDE.values()
        else os.path.join("docs", os.path.dirname(page.src_uri))
    )


def _resolve(folder: str, target: str) -> str:
    return os.path.normpath(os.path.join(folder, target))


def _is_unlisted_folder(path: str) -> bool:
    return (ROOT / path).is_dir() and path != "docs/decisions"


def _site_name(path: str) -> str:
    if path == "docs/decisions":
        return "decisions/README.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE.get(path, f"files/{path}")
