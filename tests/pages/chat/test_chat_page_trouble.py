"""The chat page where something comes between: another tab, a server that is gone, no HTTPS, texts that are long."""

from __future__ import annotations

from pathlib import Path

from browser import ELSEWHERE, check_accessible, open_page
from chat_site import THREE, Site, converse, delete, hold_in_a_reply, say, shown
from chat_stack import gateway, keys_file
from playwright.sync_api import Browser, Page, expect

from radixkv.gateway.config import GatewayConfig


def test_the_page_works_without_https_from_another_machine(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url.replace("127.0.0.1", ELSEWHERE)) as page:
        assert not page.evaluate("isSecureContext")
        converse(site, page, THREE[0])
        shown(page).last.get_by_role("button", name="Copy").click()
        expect(shown(page).last.get_by_text("Copied")).to_be_visible()
        expect(shown(page).last.get_by_text("Copied")).to_be_hidden()


def test_a_conversation_opens_at_the_first_try(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    page.add_init_script(
        "new MutationObserver(() => { if (document.querySelector('main [role=status] .notice')) window.wasLost = true })"
        ".observe(document, { subtree: true, childList: true })"
    )
    page.reload()
    expect(shown(page)).to_have_count(2)
    assert page.evaluate("window.wasLost") is None


def test_an_edit_that_cannot_be_stored_stays_in_its_field(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    shown(page).first.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Edit: You")
    field.fill("A long text that nobody wants to write again")
    site.stop()
    page.get_by_role("button", name="Send as a new branch").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(field).to_have_value("A long text that nobody wants to write again")
    site.dictate("Heard.")
    site.start()
    page.get_by_role("button", name="Send as a new branch").click()
    expect(shown(page).last).to_contain_text("Heard.")
    expect(field).to_have_count(0)


def test_what_a_message_goes_on_from_stays_whatever_happens_elsewhere(site: Site, page: Page) -> None:
    converse(site, page, *THREE[:2])
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    branching = page.get_by_text("A new branch below “First answer.”")
    expect(branching).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    expect(shown(other)).to_have_count(4)
    converse(site, other, THREE[2])
    expect(shown(page)).to_have_count(6)
    expect(branching).to_be_visible()
    site.stop()
    expect(page.get_by_text("The server cannot be reached")).to_be_visible()
    site.start()
    expect(page.get_by_text("The server cannot be reached")).to_be_hidden()
    expect(branching).to_be_visible()
    other.close()


def test_what_another_tab_deletes_is_not_shown_any_more(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    site.dictate("Another answer.")
    shown(page).last.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text("Another answer.")
    other = page.context.new_page()
    other.goto(page.url)
    expect(shown(other).last).to_contain_text("Another answer.")
    shown(page).last.get_by_role("button", name="Compare").click()
    expect(page.locator(".column")).to_have_count(2)
    delete(shown(other).last)
    expect(page.locator(".column")).to_have_count(0)
    for tab in (page, other):
        expect(shown(tab)).to_have_count(2)
        expect(shown(tab).last).to_contain_text("First answer.")
    other.close()


def test_the_way_back_leads_past_a_conversation_that_is_gone(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    page.get_by_role("button", name="New chat").click()
    page.evaluate("location.hash = '#conv_gone'")
    expect(page.get_by_role("alert")).to_contain_text("not there any more")
    page.go_back()
    page.go_back()
    expect(shown(page).last).to_contain_text("First answer.")


def test_the_focus_is_never_lost(site: Site, page: Page) -> None:
    def has_focus(selector: str) -> None:
        page.wait_for_function("(selector) => document.activeElement.matches(selector)", arg=selector)

    converse(site, page, THREE[0])
    site.dictate("Another answer.")
    shown(page).last.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text("Another answer.")
    has_focus("article")
    shown(page).last.get_by_role("button", name="Compare").click()
    has_focus(".compare-head button")
    page.get_by_role("button", name="Go on with this one").last.click()
    has_focus("article")
    delete(shown(page).last)
    expect(page.get_by_text("1 / 2")).to_have_count(0)
    has_focus("article")
    page.get_by_label("More").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    has_focus("[aria-label=More]")
    check_accessible(page)


def test_what_is_written_while_a_message_is_sent_stays(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    page.evaluate(
        "() => { const real = fetch; window.held = []; window.fetch = async (...all) => {"
        " if (String(all[0]).endsWith('/messages')) await new Promise((go) => window.held.push(go));"
        " return real(...all); }; }"
    )
    site.dictate("Second answer.")
    say(page, "Second question")
    page.wait_for_function("() => window.held.length > 0")
    page.keyboard.type(" and a third")
    page.evaluate("() => window.held.forEach((go) => go())")
    expect(shown(page).last).to_contain_text("Second answer.")
    expect(shown(page).nth(2).locator(".plain")).to_have_text("Second question")
    expect(page.get_by_label("Message", exact=True)).to_have_value(" and a third")


def test_a_branch_is_regenerated_while_another_is_being_written(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    hold_in_a_reply(site, page)
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    site.runner.gate.open()
    say(page, "Meanwhile")
    expect(shown(page).nth(2)).to_contain_text("Meanwhile")
    expect(shown(page).nth(2)).to_contain_text("2 / 2")


def test_a_server_with_keys_asks_for_one_until_it_is_known(site: Site, browser: Browser, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys_file(tmp_path / "keys.toml"), drain_s=0.05)
    with gateway(site.engine, config) as server, open_page(browser, server.page_url) as page:
        for key in ("nobody's", "red"):
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        converse(site, page, THREE[0])
        page.reload()
        expect(shown(page)).to_have_count(2)
