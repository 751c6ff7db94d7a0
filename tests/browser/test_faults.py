"""What goes wrong is said in the server's own words, and what had come stays."""

import re

from playwright.sync_api import expect

from browser.conftest import API_KEY, OpenLens
from browser.page import part, run, tokens, wait_for_end
from support.line import line_to
from support.stack import Stack


def test_without_a_key_the_page_asks_for_one(open_lens: OpenLens, stack: Stack) -> None:
    page = open_lens(stack.gateway)
    expect(page.locator("#model")).to_have_text("an API key is needed")
    expect(page.locator("[name=key]")).to_be_visible()
    run(page)
    expect(part(page, ".error")).to_contain_text("a valid API key is needed as a bearer token")
    expect(part(page, ".error")).to_contain_text("HTTP 401")
    expect(part(page, ".tokens")).to_be_hidden()
    page.fill("[name=key]", API_KEY)
    page.locator("[name=key]").blur()
    expect(page.locator("#model")).to_have_text("smollm2 · 8,192 tokens")
    run(page, max_tokens="3")
    expect(part(page, ".error")).to_be_hidden()
    assert len(tokens(page)) == 3


def test_the_key_is_kept_for_this_tab_alone(open_lens: OpenLens, stack: Stack) -> None:
    page = open_lens(stack.gateway)
    page.fill("[name=key]", API_KEY)
    page.locator("[name=key]").blur()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#model")).to_contain_text("smollm2")
    stored = page.evaluate("JSON.stringify({...localStorage}) + document.cookie + location.href")
    assert API_KEY not in stored
    other = open_lens(stack.gateway)
    expect(other.locator("#model")).to_have_text("an API key is needed")


def test_a_refusal_shows_the_servers_message(open_lens: OpenLens, stack: Stack) -> None:
    page = open_lens(stack.gateway, key=API_KEY)
    run(page, top_k="-7")
    error = part(page, ".error")
    expect(error).to_contain_text("top_k is -7; it must be 0 or -1 (off), or at least 1")
    assert re.search(
        r"HTTP 400 · invalid_request_error · param top_k · request \w+", error.inner_text()
    )
    assert error.get_attribute("role") == "alert"
    expect(part(page, ".state")).to_have_text("failed")


def test_what_is_no_number_is_named(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    page.locator("[name=temperature]").press_sequentially("1e")
    run(page)
    expect(part(page, ".error")).to_contain_text("temperature: “?” is not a number")


def test_a_stream_that_breaks_keeps_its_tokens(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["broken"])
    run(page)
    expect(part(page, ".error")).to_contain_text("the worker broke in its fifth step")
    assert tokens(page) == ["The", " sea", " is"]  # the fourth ends inside a character
    run(page)
    assert tokens(page) == ["The", " sea", " is"]


def test_a_gateway_that_is_gone_is_said(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    page.context.set_offline(True)
    run(page)
    expect(part(page, ".error")).to_contain_text("The gateway cannot be reached.")


def test_a_connection_that_breaks_is_said(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    with line_to(scripted["endless"]) as line:
        page = open_lens(line.address)
        page.click("#run")
        page.wait_for_selector(".t >> nth=20")
        line.cut()
        wait_for_end(page)
    expect(part(page, ".error")).to_contain_text("The connection to the gateway broke")
    assert len(tokens(page)) > 20
