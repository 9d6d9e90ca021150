"""A browser, and the chat page in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import open_page, start_browser
from chat_site import Site
from patience import wait_for_all
from playwright.sync_api import Browser, Page

FOLDER = f"{Path(__file__).parent}/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of a page is thorough: a browser takes seconds for each."""
    for item in items:
        if str(item.path).startswith(FOLDER):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True, scope="module")
def patient_gateways() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_all(patch)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, for tests of the pages; the test is skipped where there is none."""
    with start_browser() as browser:
        yield browser


@pytest.fixture
def site(default_model: str, tmp_path: Path) -> Iterator[Site]:
    """A gateway with the chat page."""
    site = Site(default_model, tmp_path)
    yield site
    site.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    """The chat page."""
    with open_page(browser, site.url) as page:
        yield page
