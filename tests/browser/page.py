"""What the tests do with the lens, and read from it."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page


def run(page: Page, **fields: str) -> None:
    """Fill in ``fields`` of the controls, press Run and wait for the end."""
    fill(page, **fields)
    page.click("#run")
    wait_for_end(page)


def fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        if not page.locator(f"[name={name}]").is_visible():
            page.click("#more summary")
        page.fill(f"[name={name}]", value)


def wait_for_end(page: Page) -> None:
    page.wait_for_selector("#run:not([hidden])")
    frames_passed(page)


def frames_passed(page: Page) -> None:
    """Wait until every token that came is drawn."""
    page.evaluate(
        """async () => {
          const frame = () => new Promise((done) => requestAnimationFrame(done));
          let before = -1;
          for (let same = 0; same < 3; ) {
            await frame();
            const now = document.querySelectorAll(".t").length;
            same = now === before ? same + 1 : 0;
            before = now;
          }
        }"""
    )


def part(page: Page, selector: str, pane: int = 1) -> Locator:
    """What ``selector`` finds in one pane."""
    return page.locator(f".pane:nth-of-type({pane}) {selector}")


def tokens(page: Page, pane: int = 1) -> list[str]:
    """The text of every token on the page, signs for line breaks left out."""
    texts: list[str] = part(page, ".t", pane).all_text_contents()
    return texts


def figure(page: Page, name: str) -> str:
    text: str = part(page, f"[data-figure={name}]").inner_text()
    return text


def card(page: Page) -> str:
    text: str = page.locator("#card").inner_text()
    return text


def exported(page: Page, kind: str) -> str:
    """The file behind the export button of the first pane."""
    with page.expect_download() as download:
        part(page, f".as-{kind}").click()
    path: Path = download.value.path()
    return path.read_bytes().decode()


def exported_json(page: Page) -> dict[str, Any]:
    run_as_json: dict[str, Any] = json.loads(exported(page, "json"))
    return run_as_json
