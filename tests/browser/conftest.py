"""A headless Chromium without a network, and the gateways that it looks at."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.stack import Stack, running_stack

REPOSITORY = Path(__file__).parents[2]
API_KEY = "a-key-for-tests"
TIMEOUT_MS = 60_000
EXECUTABLES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
#: Runs before the page: tasks of 50 ms and more, and how many tokens were drawn after each batch.
WATCH = """
window.watched = {longTasks: [], drawn: []};
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) watched.longTasks.push(task.duration);
}).observe({entryTypes: ["longtask"]});
"""

ColorScheme = Literal["light", "dark"]
OpenLens = Callable[..., Page]


def pytest_addoption(parser: pytest.Parser) -> None:
    default = str(REPOSITORY / ".venv" / "bin" / "python")
    parser.addoption("--server-python", default=default, help="the python that has triptych")
    parser.addoption("--chromium", default=None, help="the browser's executable")


def pytest_configure() -> None:
    expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    asked = request.config.getoption("--chromium")
    names = [asked] if asked else EXECUTABLES
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(
            f"no browser: none of {', '.join(names)} is on the path; apt-get install chromium"
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def server_python(request: pytest.FixtureRequest, browser: Browser) -> str:
    assert browser.is_connected()  # without a browser nothing is started
    return str(request.config.getoption("--server-python"))


@pytest.fixture(scope="session")
def scripted(server_python: str) -> Iterator[dict[str, str]]:
    """Gateways by the name of the answer that each of them gives."""
    roots = [REPOSITORY / folder for folder in ("services", "shared", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    with subprocess.Popen(
        [server_python, "-m", "browser.scripted_server"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


@pytest.fixture(scope="session")
def stack(server_python: str) -> Iterator[Stack]:
    """The product with SmolLM2, behind an API key."""
    with running_stack(f"--api-key={API_KEY}", python=server_python) as started:
        yield started


@pytest.fixture
def open_lens(browser: Browser) -> Iterator[OpenLens]:
    """Opens the lens of a gateway, in an empty profile; at the end, nothing may have gone wrong."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_page(
        gateway: str,
        *,
        key: str | None = None,
        width: int = 1200,
        color_scheme: ColorScheme = "light",
        script: str = "",
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=color_scheme
        )
        contexts.append(context)
        context.add_init_script(WATCH + script)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('triptych-lens-key', '{key}')")
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("request", lambda asked: faults.extend(_outside(asked.url, gateway)))
        page.goto(f"{gateway}/lens")
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _outside(url: str, gateway: str) -> list[str]:
    is_own = url.startswith((f"{gateway}/", f"blob:{gateway}/"))
    return [] if is_own else [f"a request to {url}"]
