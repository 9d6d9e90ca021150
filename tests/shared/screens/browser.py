"""A real browser for tests of the pages: the machine's Chromium without a window, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

__all__ = ["ELSEWHERE", "WIDTHS", "check_accessible", "check_clean", "open_page", "phone", "start_browser"]

ELSEWHERE = "elsewhere.test"
"""This machine by a name that is not trusted without HTTPS: what only secure pages may do is missing."""

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first draws no window and no pages of its own: it takes a third of the processor's time."""
_BAD = {"serious", "critical"}
_ARGUMENTS = ["--no-sandbox", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]
DEADLINE_MS = 200_000
"""What is waited for comes at last, on a busy machine, too."""
expect.set_options(timeout=DEADLINE_MS)

WIDTHS = (360, 768, 1280)
"""Of a phone, a tablet, a desk, in pixels."""

phone = {"width": 390, "height": 844}


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Chromium; the test is skipped where there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, url: str, **context: object) -> Iterator[Page]:
    """A page in a profile of its own, which may neither throw nor break the policy that it was sent with."""
    faults: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            faults.append(message.text)

    own = browser.new_context(**context)  # type: ignore[arg-type]  # passed on
    page = own.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.on("console", listen)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url)
    yield page
    own.close()
    assert not faults, faults


def check_accessible(page: Page) -> None:
    """Axe finds nothing serious on the page as it is drawn, after what the page does when a size has changed."""
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    found = Axe().run(page).response["violations"]
    bad = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found if rule["impact"] in _BAD]
    assert not bad, bad


def check_clean(page: Page) -> None:
    """Axe finds nothing at all on the page as it stands."""
    found = Axe().run(page).response["violations"]
    bad = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
    assert not bad, bad
