"""The chat page in a real browser, over the real gateway and an engine with a hash model that speaks gibberish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import check_accessible, open_page, phone
from chat_site import THREE, Site, converse, hold_in_a_reply, say, shown
from chat_stack import gateway
from playwright.sync_api import Browser, Page, expect
from thinking_families import QWEN3, save_family
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.worker.server import GenerationServer

LONG = 100_000


def test_a_conversation_is_regenerated_edited_and_outlives_a_reload_and_a_restart(site: Site, page: Page) -> None:
    converse(site, page, *THREE)
    site.dictate("Another third.")
    shown(page).last.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text("Another third.")
    expect(shown(page).last).to_contain_text("2 / 2")

    first = shown(page).first
    first.get_by_role("button", name="Edit").click()
    site.dictate("Edited answer.")
    page.get_by_label("Edit: You").fill("Edited question")
    page.get_by_role("button", name="Send as a new branch").click()
    expect(shown(page)).to_have_count(2)
    expect(shown(page).last).to_contain_text("Edited answer.")
    expect(shown(page).last).to_contain_text(re.compile(r"[1-9]\d* tokens reused"))

    page.reload()
    expect(shown(page)).to_have_count(2)
    expect(shown(page).first).to_contain_text("Edited question")

    site.stop()
    expect(page.get_by_text("The server cannot be reached")).to_be_visible()
    site.start()
    expect(page.get_by_text("The server cannot be reached")).to_be_hidden()
    shown(page).first.get_by_role("button", name="Earlier version").click()
    expect(shown(page)).to_have_count(6)
    expect(shown(page).last).to_contain_text("Another third.")
    converse(site, page, ("After the restart", "Still here."))
    expect(page.get_by_text("11 messages,")).to_be_visible()


def test_branches_stand_side_by_side_and_one_goes_on_with_either(site: Site, page: Page) -> None:
    converse(site, page, *THREE[:2])
    site.dictate("A second opinion.")
    shown(page).nth(1).get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text("A second opinion.")
    shown(page).last.get_by_role("button", name="Compare").click()
    columns = page.locator(".column")
    expect(columns).to_have_count(2)
    expect(columns.nth(0)).to_contain_text("First answer.")
    expect(columns.nth(0)).to_contain_text("Second answer.")
    expect(columns.nth(1)).to_contain_text("A second opinion.")
    expect(page.get_by_text("All go on from: “First question”")).to_be_visible()
    check_accessible(page)
    columns.nth(0).get_by_role("button", name="Go on with this one").click()
    expect(shown(page)).to_have_count(4)


def test_a_branch_begins_at_any_message(site: Site, page: Page) -> None:
    converse(site, page, *THREE)
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    expect(page.get_by_text("A new branch below “First answer.”")).to_be_visible()
    site.dictate("Elsewhere.")
    say(page, "Another way")
    expect(shown(page)).to_have_count(4)
    expect(shown(page).nth(2)).to_contain_text("2 / 2")
    expect(shown(page).last).to_contain_text("Elsewhere.")


def test_four_drafts_come_at_once_and_one_is_chosen(page: Page) -> None:
    page.get_by_role("button", name="1 reply").click()
    page.get_by_label("Drafts at once").fill("4")
    page.get_by_label("Longest reply").fill("24")
    say(page, "Four of them, please")
    columns = page.locator(".column")
    expect(columns).to_have_count(4)
    expect(columns.get_by_text("computed for 4 drafts")).to_have_count(4)
    columns.nth(2).get_by_role("button", name="Go on with this one").click()
    expect(shown(page).last).to_contain_text("3 / 4")
    expect(page.get_by_text("5 messages, 4 branches")).to_be_visible()


def test_the_keyboard_alone_does(site: Site, page: Page) -> None:
    field = page.get_by_label("Message", exact=True)
    expect(field).to_be_focused()
    page.get_by_role("link", name="Skip to the message field").focus()
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    site.dictate("By keys.")
    page.keyboard.type("Only keys")
    page.keyboard.press("Enter")
    expect(shown(page)).to_have_count(2)
    expect(shown(page).last).to_contain_text("By keys.")
    while not page.evaluate("document.activeElement.matches('article')"):
        page.keyboard.press("Shift+Tab")
    site.dictate("Again by keys.")
    page.keyboard.press("r")
    expect(shown(page).last).to_contain_text("Again by keys.")
    shown(page).last.focus()
    page.keyboard.press("ArrowLeft")
    expect(shown(page).last).to_contain_text("1 / 2")
    expect(shown(page).last).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(shown(page).first).to_be_focused()
    page.keyboard.press("e")
    page.keyboard.type(", edited")
    site.dictate("Edited by keys.")
    page.keyboard.press("Control+Enter")
    expect(shown(page).last).to_contain_text("Edited by keys.")
    shown(page).first.focus()
    page.keyboard.press("c")
    expect(page.locator(".column")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator(".column")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [phone, {"width": 1280, "height": 800}], ids=["390 px", "1280 px"])
def test_the_page_is_accessible_and_nothing_is_cut_off(
    site: Site, browser: Browser, size: dict[str, int], scheme: str
) -> None:
    with open_page(browser, site.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as page:
        check_accessible(page)
        markdown = (
            "A list:\n\n1. `one`\n\n```python\nx = 1  # why\n```\n\n| a | b |\n|---|--:|\n| " + "long " * 30 + "| 2 |"
        )
        converse(site, page, ("A question", "An answer."))
        site.dictate(markdown)
        say(page, "With everything")
        expect(shown(page).last.locator("table")).to_be_visible()
        check_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        box = page.get_by_role("button", name="Send").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= size["width"]
        if size is phone:
            page.get_by_role("button", name="Conversations").click()
            expect(page.get_by_role("button", name="New chat")).to_be_visible()
            check_accessible(page)
            page.keyboard.press("Escape")
            expect(page.get_by_role("button", name="New chat")).to_be_hidden()
            page.get_by_role("button", name="Branches").click()
            expect(page.get_by_role("tree")).to_be_visible()
            page.get_by_role("button", name="Close").click(position={"x": 5, "y": 400})
            expect(page.get_by_role("tree")).to_be_hidden()


def test_nothing_in_a_message_or_a_reply_runs(site: Site, page: Page) -> None:
    evil = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    site.dictate(
        f"{evil}\n\n[link](javascript:window.hacked=3) ![p](http://127.0.0.1:1/p.png)\n\n<b onclick=x>bold</b>"
    )
    say(page, evil)
    expect(shown(page)).to_have_count(2)
    expect(shown(page).first).to_contain_text(evil)
    expect(shown(page).last).to_contain_text("<script>window.hacked = 1</script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator("article script, article img, article [onclick], article a[href^='javascript']").count() == 0
    assert shown(page).last.get_by_role("link", name="p", exact=True).count() == 1


def test_a_message_of_100_kb_arrives_whole_also_where_the_model_cannot_take_it(
    default_model: str, tmp_path: Path, browser: Browser
) -> None:
    text = ("words of a long message " * (LONG // 24))[:LONG].strip()
    site = Site(default_model, tmp_path, num_blocks=4096, max_model_len=2048)
    try:
        with open_page(browser, site.url) as page:
            say(page, text)
            expect(page.get_by_role("alert")).to_contain_text("of at most 2,048 tokens")
            expect(shown(page)).to_have_count(1)
            page.get_by_role("button", name="Show all").click()
            assert shown(page).locator(".plain").inner_text() == text
            page.reload()
            expect(shown(page)).to_have_count(1)
    finally:
        site.close()


def try_again(site: Site, page: Page) -> None:
    """The reply has failed with what was written, and another one can be had."""
    failed = page.locator("article.failed")
    expect(failed).to_contain_text("word word")
    expect(shown(page).first).to_contain_text("Go on and on")
    site.runner.gate.open()
    wait_until(lambda: not site.engine.stats().engine.num_generations)  # what was held up has ended
    site.dictate("Now then.")
    failed.get_by_role("button", name="Try again").click()
    expect(shown(page).last).to_contain_text("Now then.")
    expect(shown(page).last).to_contain_text("2 / 2")


def test_a_reply_whose_worker_goes_away_keeps_its_text(site: Site, browser: Browser) -> None:
    worker = GenerationServer(site.engine, "127.0.0.1:0").start()
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, worker_wait_s=0)
    with GenerationClient(worker.address) as client, gateway(client, config) as server:
        with open_page(browser, server.page_url) as page:
            hold_in_a_reply(site, page)
            worker.stop()
            worker = GenerationServer(site.engine, worker.address).start()
            try_again(site, page)
        worker.stop()


def test_a_reply_whose_gateway_restarts_keeps_its_text(site: Site, page: Page) -> None:
    hold_in_a_reply(site, page)
    site.stop()
    site.start()
    try_again(site, page)


def test_a_reply_is_stopped_and_keeps_its_text(site: Site, page: Page) -> None:
    hold_in_a_reply(site, page)
    page.locator("article.running").get_by_role("button", name="Stop").click()
    site.runner.gate.open()
    stopped = page.locator("article.stopped")
    expect(stopped).to_contain_text("word word")
    wait_until(lambda: not site.engine.stats().engine.num_generations)
    site.dictate("Go on, then.")
    stopped.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text("Go on, then.")


def test_what_could_not_be_sent_stays_and_is_sent_once(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    site.stop()
    say(page, "Into the void")
    expect(page.get_by_role("alert").filter(has_text="Send again")).to_be_visible()
    site.dictate("Heard.")
    site.start()
    page.get_by_role("button", name="Send again").click()
    expect(shown(page)).to_have_count(4)
    expect(shown(page).last).to_contain_text("Heard.")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_two_tabs_show_the_same_conversation_and_lose_nothing(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    other = page.context.new_page()
    other.goto(page.url)
    expect(shown(other)).to_have_count(2)
    converse(site, page, THREE[1])
    expect(shown(other)).to_have_count(4)
    expect(shown(other).last).to_contain_text("Second answer.")
    site.dictate("From the other tab.")
    shown(other).last.get_by_role("button", name="Regenerate").click()
    expect(shown(other).last).to_contain_text("From the other tab.")
    expect(shown(page).last).to_contain_text("1 / 2")
    site.dictate("Both at once.")
    say(page, "From one")
    say(other, "From the other")
    expect(page.get_by_text("9 messages,")).to_be_visible()
    expect(other.get_by_text("9 messages,")).to_be_visible()


def test_conversations_are_listed_searched_saved_imported_and_deleted(site: Site, page: Page, tmp_path: Path) -> None:
    converse(site, page, ("About apples", "Red."))
    page.get_by_role("button", name="New chat").click()
    converse(site, page, ("About pears", "Green."))
    entries = page.locator(".conversations li")
    expect(entries).to_have_count(2)
    page.get_by_label("Search conversations").fill("apple")
    expect(entries).to_have_count(1)
    entries.first.click()
    expect(shown(page).last).to_contain_text("Red.")

    page.get_by_label("More").click()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save all as JSON").click()
    saved = tmp_path / saving.value.suggested_filename
    saving.value.save_as(saved)
    page.get_by_label("More").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(entries).to_have_count(0)
    page.get_by_label("File to import").set_input_files(saved)
    expect(page.get_by_text("1 imported.")).to_be_visible()
    expect(entries).to_have_count(1)
    entries.first.click()
    expect(shown(page).last).to_contain_text("Red.")


def test_what_a_model_thinks_is_folded_above_its_reply(default_model: str, tmp_path: Path, browser: Browser) -> None:
    site = Site(save_family(default_model, tmp_path / "qwen3", QWEN3), tmp_path)
    try:
        with open_page(browser, site.url) as page:
            site.dictate(QWEN3.written("The user greets.", "Good day."))
            say(page, "Hello")
            expect(shown(page)).to_have_count(2)
            reply = shown(page).last
            expect(reply.locator(".markdown")).to_have_text("Good day.")
            thoughts = reply.get_by_text("The user greets.")
            expect(thoughts).to_be_hidden()
            reply.get_by_text("Thinking").click()
            expect(thoughts).to_be_visible()
            page.reload()
            expect(shown(page).last.get_by_text("The user greets.")).to_be_hidden()
            check_accessible(page)
    finally:
        site.close()
