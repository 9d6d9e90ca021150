"""A live cache service over TCP and over a unix socket, on a clock that the test moves, a holder of a pool of it; a browser,
and the chat page in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_service import TTL_S, Clock

from radixkv import PoolShape, connect
from radixkv.client import RemoteHolder
from radixkv.service import ServiceConfig, ServiceThread

if TYPE_CHECKING:
    from chat_site import Site
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, for tests of the pages; the test is skipped where there is none."""
    from browser import start_browser

    with start_browser() as browser:
        yield browser


@pytest.fixture
def site(default_model: str, tmp_path: Path) -> Iterator[Site]:
    """A gateway with the chat page."""
    from chat_site import Site

    site = Site(default_model, tmp_path)
    yield site
    site.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    """The chat page."""
    from browser import open_page

    with open_page(browser, site.url) as page:
        yield page


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["tcp", "unix"])
def service(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[ServiceThread]:
    address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/s"
    with ServiceThread(ServiceConfig(addresses=(address,), lease_ttl_s=TTL_S), clock=clock) as thread:
        yield thread


@pytest.fixture
def holder(service: ServiceThread) -> Iterator[RemoteHolder]:
    with connect(service.addresses[0], PoolShape(64)) as holder:
        yield holder
        holder.check()
