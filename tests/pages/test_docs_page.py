"""The page on the API in a real browser: it lists what the server describes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from browser import check_accessible, open_page
from chat_stack import Stack, chat_stack
from playwright.sync_api import Browser, expect


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


def test_the_page_lists_every_route_with_its_fields(stack: Stack, browser: Browser) -> None:
    told = httpx.get(f"http://{stack.server.address}/openapi.json").json()
    num_routes = sum(map(len, told["paths"].values()))
    with open_page(browser, f"http://{stack.server.address}/docs") as page:
        expect(page.locator("details")).to_have_count(num_routes)
        page.locator("summary").filter(has_text="/v1/chat/completions").click()
        row = page.locator("tr").filter(has=page.get_by_text("top_p", exact=True)).first
        expect(row).to_contain_text("at most 1")
        check_accessible(page)
