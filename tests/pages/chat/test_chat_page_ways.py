"""The chat page's ways: Back and Forward, links to messages, where a branch begins, what stays in sight."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser import check_accessible, open_page, phone
from chat_site import THREE, Site, converse, hold_in_a_reply, regenerate, say, shown
from playwright.sync_api import Browser, Page, expect

_LOW = {"width": 1100, "height": 420}
"""So low that three turns do not fit."""


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    with open_page(browser, site.url, viewport=_LOW) as page:
        yield page


def test_back_and_forward_go_through_branches_and_comparisons(site: Site, page: Page) -> None:
    converse(site, page, *THREE[:2])
    regenerate(site, page, "A second opinion.")
    shown(page).last.get_by_role("button", name="Earlier version").click()
    expect(shown(page).last).to_contain_text("Second answer.")
    shown(page).last.get_by_role("button", name="Compare").click()
    columns = page.locator(".column")
    expect(columns).to_have_count(2)

    page.go_back()
    expect(columns).to_have_count(0)
    expect(shown(page).last).to_contain_text("Second answer.")
    page.go_back()
    expect(shown(page).last).to_contain_text("A second opinion.")
    page.go_back()
    expect(shown(page).last).to_contain_text("Second answer.")
    for _ in range(3):
        page.go_forward()
    expect(columns).to_have_count(2)
    page.keyboard.press("2")
    expect(columns).to_have_count(0)
    expect(shown(page).last).to_contain_text("A second opinion.")


def test_what_only_grows_is_no_step_back(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    steps = page.evaluate("history.length")
    converse(site, page, *THREE[1:])
    assert page.evaluate("history.length") == steps
    page.go_back()
    expect(page.get_by_role("heading", name="New chat")).to_be_visible()
    page.go_forward()
    expect(shown(page).last).to_contain_text("Third answer.")


def test_a_comparison_has_an_address(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    regenerate(site, page, "A second opinion.")
    shown(page).last.get_by_role("button", name="Compare").click()
    expect(page.locator(".column")).to_have_count(2)
    page.reload()
    expect(page.locator(".column")).to_have_count(2)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".column").nth(1)).to_contain_text("A second opinion.")
    other.close()


def test_back_closes_a_side_on_a_phone(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url, viewport=phone) as page:
        converse(site, page, THREE[0])
        page.get_by_role("button", name="Branches").click()
        expect(page.get_by_role("tree")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("tree")).to_be_hidden()
        expect(shown(page).last).to_contain_text("First answer.")


def test_a_search_leads_to_the_message_also_on_a_branch_that_is_not_shown(site: Site, page: Page) -> None:
    converse(site, page, THREE[0], ("Second question", "It begins with 🌊 water."), THREE[2])
    regenerate(site, page, "Another end.")
    shown(page).nth(1).get_by_role("button", name="Branch", exact=True).click()
    site.dictate("Elsewhere.")
    say(page, "And else?")
    expect(shown(page).last).to_contain_text("Elsewhere.")
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Search conversations").fill("WATER")
    hit = page.locator(".hits a")
    expect(hit).to_have_count(1)
    expect(hit.locator("mark")).to_have_text("water")
    check_accessible(page)
    hit.click()
    expect(shown(page).nth(3)).to_contain_text("water")
    expect(shown(page).nth(3)).to_have_class(re.compile(r"\blinked\b"))
    expect(shown(page).nth(3)).to_be_in_viewport()
    page.get_by_label("Search conversations").fill("water all")
    expect(page.get_by_text("None found.")).to_be_visible()


def test_a_link_to_a_message_opens_its_branch_there(site: Site, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    converse(site, page, *THREE)
    shown(page).nth(1).get_by_role("button", name="Other actions").click()
    check_accessible(page)
    shown(page).nth(1).get_by_role("button", name="Copy link").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('/msg_')")
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(link)
    for _ in range(2):
        expect(shown(page)).to_have_count(6)
        expect(shown(page).nth(1)).to_have_class(re.compile(r"\blinked\b"))
        expect(shown(page).nth(1)).to_be_in_viewport()
        expect(shown(page).last).not_to_be_in_viewport()
        page.reload()
    expect(shown(page)).to_have_count(6)
    check_accessible(page)
    assert page.url == link
    converse(site, page, ("And on", "It goes."))  # below the end of the branch, not below the message
    expect(shown(page)).to_have_count(8)
    expect(page.locator(".linked")).to_have_count(0)


def test_the_end_is_one_press_away(site: Site, page: Page) -> None:
    converse(site, page, *THREE)
    to_end = page.get_by_role("button", name="To the end")
    expect(to_end).to_be_hidden()
    page.locator(".thread").evaluate("(thread) => thread.scrollTo({ top: 0 })")
    to_end.click()
    expect(shown(page).last).to_be_in_viewport()
    expect(to_end).to_be_hidden()


def test_a_branch_shows_where_it_begins_and_what_it_leaves_out(site: Site, page: Page) -> None:
    converse(site, page, *THREE)
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    expect(page.get_by_text("4 messages below stay in the branch that is there")).to_be_visible()
    expect(shown(page).nth(1)).to_be_in_viewport()
    for later in range(2, 6):
        expect(shown(page).nth(later)).to_be_hidden()
    check_accessible(page)
    page.get_by_role("button", name="Go on at the end instead").click()
    expect(shown(page).last).to_be_visible()
    shown(page).last.get_by_role("button", name="Branch").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.locator(".branching")).to_have_count(0)  # at its end a branch just goes on


def test_stop_ends_the_reply_that_is_shown_and_no_other(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    hold_in_a_reply(site, page)
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    stop = page.locator(".composer").get_by_role("button", name="Stop")
    expect(stop).to_be_hidden()  # the reply that is being written is out of sight
    say(page, "Meanwhile")
    stop.click()
    site.runner.gate.open()
    expect(page.locator("article.stopped, article.failed")).to_have_count(1)
    expect(stop).to_be_hidden()
    shown(page).nth(2).get_by_role("button", name="Earlier version").click()
    other = page.locator("article.assistant").last
    expect(other).to_contain_text("word word")
    expect(other).to_have_class(re.compile("running|complete"))


def test_new_chat_and_search_stay_in_sight_above_a_long_list(page: Page) -> None:
    page.evaluate(
        "async () => { for (let n = 0; n < 30; n++) await fetch('/v1/radixkv/conversations',"
        " { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{\"messages\": []}' }); }"
    )
    page.reload()
    entries = page.locator(".conversations li")
    expect(entries.first).to_be_in_viewport()
    page.locator(".conversations").evaluate("(list) => list.scrollTo(0, list.scrollHeight)")
    expect(entries.last).to_be_in_viewport()
    expect(entries.last).to_have_attribute("aria-posinset", "30")
    for button in ("New chat", "Import"):
        expect(page.get_by_role("button", name=button, exact=True)).to_be_in_viewport()
    expect(page.get_by_label("Search conversations")).to_be_in_viewport()
