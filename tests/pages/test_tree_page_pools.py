"""The tree page of a gateway over two services: which pool is shown, and that all it does is of that one."""

from __future__ import annotations

from pathlib import Path

from browser import check_accessible, open_page
from many_hosts import POOLS, serving, two_hosts
from playwright.sync_api import Browser, expect
from tree_page import number_of_nodes


def test_each_pool_is_shown_by_choice(browser: Browser, default_model: str, tmp_path: Path) -> None:
    with two_hosts(default_model) as hosts:
        for _ in range(2):
            hosts[0].compute(1, "default")
        for number in (2, 3):
            hosts[1].compute(number, "default")
        with serving(hosts, tmp_path, keys=()) as server, open_page(browser, f"http://{server.address}/tree") as page:
            chosen = page.get_by_label("Pool that is shown")
            expect(chosen.locator("option")).to_have_count(2)
            for host, other in (hosts, hosts[::-1]):
                chosen.select_option(label=f"{host.pool} at {host.address}")
                number_of_nodes(page, len(host.holder.dump()))
                before = len(other.holder.dump())
                page.get_by_role("button", name="Make room…").click()
                page.get_by_label("Blocks", exact=True).fill("200")
                page.get_by_role("button", name="Evict", exact=True).click()
                number_of_nodes(page, 0)
                assert not host.holder.dump()
                assert len(other.holder.dump()) == before
            assert {host.pool for host in hosts} == set(POOLS)
            check_accessible(page)
