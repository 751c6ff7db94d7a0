"""The page itself: long answers, light and dark, and what axe says of its accessibility."""

import sys
from itertools import pairwise
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browser.conftest import OpenLens
from browser.page import exported_json, figure, part, run, tokens, wait_for_end

TOOL = '[{"type": "function", "function": {"name": "get_weather"}}]'


@pytest.mark.parametrize("name", ["long", "one-paragraph"])
def test_two_thousand_tokens_are_drawn_in_many_frames(
    open_lens: OpenLens,
    scripted: dict[str, str],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Long tasks are printed, not bounded: on a busy machine they say nothing. See docs/lens.md."""
    page = open_lens(scripted[name])
    page.evaluate(
        """() => new MutationObserver(
          () => watched.drawn.push(document.querySelectorAll(".t").length)
        ).observe(document.querySelector(".tokens"), {childList: true, subtree: true})"""
    )
    run(page, max_tokens="2000", logprobs="20")
    watched = page.evaluate("watched")
    assert len(tokens(page)) == 2000 == int(figure(page, "tokens"))
    steps = [0, *watched["drawn"]]
    batches = [after - before for before, after in pairwise(steps) if after > before]
    assert len(batches) >= 5
    assert max(batches) < 1000, "half of the answer came in one frame"
    assert len(exported_json(page)["tokens"][-1]["candidates"]) == 20
    with capsys.disabled():
        long_tasks = [round(each) for each in watched["longTasks"]]
        sys.stdout.write(f"\n{name}: {len(batches)} batches, long tasks in ms: {long_tasks}\n")


def test_page_answers_while_an_answer_comes(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["endless"])
    page.click("#run")
    page.wait_for_selector(".t >> nth=200")
    page.click(".t >> nth=3")
    assert page.locator("#card.pinned").is_visible()
    page.click("#stop")
    wait_for_end(page)


def test_a_long_answer_stays_in_view_while_it_grows(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["long"])
    page.evaluate("""() => {
      window.places = [];
      addEventListener("scroll", () => places.push(scrollY));
    }""")
    run(page, max_tokens="2000", logprobs="2")
    expect(part(page, ".end")).to_be_in_viewport()  # soon: scrolls are throttled, the last one too
    places = page.evaluate("places")
    assert len(places) > 1
    assert places == sorted(places), "the page went back"


def test_dark_follows_the_system_and_the_button(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"], color_scheme="dark")
    assert lightness(page) < 60
    page.click("#theme")  # auto, then light
    assert lightness(page) > 200
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert lightness(page) > 200
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "Theme: dark"
    assert lightness(page) < 60
    page.emulate_media(color_scheme="light")
    assert lightness(page) < 60
    page.click("#theme")
    assert lightness(page) > 200


def test_a_browser_that_blocks_cookies_shows_the_page_too(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"], script=NO_STORAGE)
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "Theme: light"
    run(page)
    assert tokens(page)[:3] == ["The", " sea", " is"]


#: What Chromium does where cookies are blocked.
NO_STORAGE = """
for (const name of ["localStorage", "sessionStorage"]) {
  const get = () => { throw new DOMException("Access is denied", "SecurityError"); };
  Object.defineProperty(window, name, {get});
}
"""


def lightness(page: Page) -> int:
    """The red part of the page's background, 0 to 255."""
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.removeprefix("rgb(").split(",")[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_axe_finds_no_fault(
    open_lens: OpenLens, scripted: dict[str, str], scheme: str, width: int
) -> None:
    page = open_lens(scripted["channels"], color_scheme=scheme, width=width)
    faults = violations(page)
    page.check("[name=compare]")
    run(page, tools=TOOL)
    page.locator(".t[tabindex='0']").first.focus()
    page.keyboard.press("Enter")
    faults += violations(page)
    page.select_option("[name=colouring]", "entropy")
    page.click("text=Completion")
    faults += violations(page)
    page.click("text=Score a text")
    run(page)
    faults += violations(page)
    assert faults == []


def violations(page: Page) -> list[str]:
    """Each fault with the elements that have it: names, roles, contrast, structure and more."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes']][:4]}" for each in found]


def test_every_level_is_readable(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    """WCAG's contrast of text on each colour, in both themes; AA asks for 4.5."""
    page = open_lens(scripted["unicode"])
    for _ in range(2):
        page.click("#theme")
        ratios = page.evaluate(CONTRASTS)
        assert len(ratios) == 7
        assert min(ratios) >= 4.5, ratios


CONTRASTS = """() => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * linear(colour[i] / 255), 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const sheet = parse(getComputedStyle(document.querySelector("#controls")).backgroundColor);
  return [...document.querySelectorAll("#legend li")].map((item) => {
    const style = getComputedStyle(item);
    const fill = parse(style.backgroundColor);
    const [a, b] = [parse(style.color), fill[3] === 0 ? sheet : fill].map(luminance);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""
