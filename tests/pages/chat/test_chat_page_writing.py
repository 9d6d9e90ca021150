"""The chat page's field and what goes into it: sent once, with files, settings, instructions, in the model's room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import check_accessible, open_page
from chat_site import THREE, Site, converse, hold_in_a_reply, say, shown
from chat_stack import gateway, keys_file
from playwright.sync_api import Browser, Locator, Page, expect

from radixkv.gateway.config import GatewayConfig

_DROP = """(element, [name, bytes, kind]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
  const how = { bubbles: true, cancelable: true, dataTransfer, clipboardData: dataTransfer };
  if (kind === "paste") return !element.dispatchEvent(new ClipboardEvent("paste", how));
  const isHeld = !element.dispatchEvent(new DragEvent("dragover", how));
  return isHeld && !element.dispatchEvent(new DragEvent("drop", how));
}"""
_CONTRAST = """(field) => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((part) => Number(part) / 255);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = getComputedStyle(field.closest(".composer")).backgroundColor;
  const [one, other] = [light(getComputedStyle(field, "::placeholder").color), light(ground)].sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
}"""
_RENDERED = """async () => {
  const { options } = await import("/static/vendor/htm-preact.js");
  window.rendered = [];
  window.drawn_ms = performance.now();
  const before = options.__r;
  options.__r = (vnode) => {
    if (typeof vnode.type === "function") window.rendered.push(vnode.type.name);
    window.drawn_ms = performance.now();
    before?.(vnode);
  };
}"""


def field(page: Page) -> Locator:
    return page.get_by_label("Message", exact=True)


def test_one_press_of_control_and_enter_sends_once(site: Site, page: Page) -> None:
    site.dictate("Once.")
    field(page).fill("Twice?")
    page.keyboard.press("Control+Enter")
    expect(shown(page).last).to_contain_text("Once.")
    expect(page.locator(".conversations li")).to_have_count(1)
    assert len(site.engine.prompts) == 1


def test_settings_that_the_server_would_refuse_are_not_sent(site: Site, page: Page) -> None:
    page.get_by_role("button", name="1 reply").click()
    temperature = page.get_by_label("Temperature")
    temperature.fill("9")
    say(page, "Hot")
    expect(temperature).to_be_focused()  # where the browser says what is wrong
    expect(shown(page)).to_have_count(0)
    temperature.fill("0.5")
    page.get_by_label("Top p").fill("0.9")
    page.get_by_label("Top k").fill("7")
    page.get_by_label("Min p").fill("0.05")
    page.get_by_label("Seed").fill("11")
    site.dictate("Mild.")
    say(page, "Mild")
    expect(shown(page).last).to_contain_text("Mild.")
    sampling = site.engine.samplings[-1]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (
        0.5,
        0.9,
        7,
        0.05,
        11,
    )
    expect(shown(page).last.locator(".cost")).to_have_attribute("title", re.compile("temperature 0.5.*seed 11"))


def test_a_browser_that_keeps_nothing_is_no_reason_to_stop(site: Site, page: Page) -> None:
    site.dictate("one two three four five")
    page.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }"
    )
    page.get_by_role("button", name="1 reply").click()
    page.get_by_label("Longest reply").fill("3")
    say(page, "Short")
    expect(shown(page).last).to_contain_text("Cut at the longest length allowed.")


def test_instructions_typed_for_a_new_chat_stay_until_it_begins(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    page.get_by_role("button", name="New chat").click()
    page.get_by_text("Instructions for the model").click()
    page.get_by_label("Instructions", exact=True).fill("Speak like a sailor.")
    page.locator(".conversations a").first.click()
    expect(shown(page)).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_label("Instructions", exact=True)).to_have_value("Speak like a sailor.")
    site.dictate("Ahoy.")
    say(page, "Hello")
    expect(shown(page)).to_have_count(3)
    expect(shown(page).first).to_contain_text("Speak like a sailor.")
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_label("Instructions", exact=True)).to_have_value("")


def test_instructions_are_kept_under_names_picked_changed_and_deleted(site: Site, browser: Browser) -> None:
    kept = "Kept instructions"
    with open_page(browser, site.url, viewport={"width": 360, "height": 740}) as page:
        page.get_by_text("Instructions for the model").click()
        written = page.get_by_label("Instructions", exact=True)
        expect(page.get_by_label(kept)).to_have_count(0)
        written.fill("Speak like a sailor.")
        keep_under(page, "Sailor")
        expect(page.get_by_label(kept)).to_have_value("Sailor")
        written.fill("Speak like a poet.")
        keep_under(page, "Poet")
        expect(page.get_by_label(kept).locator("option")).to_have_text([kept, "Poet", "Sailor"])
        check_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    with open_page(browser, site.url) as page:  # in another browser
        page.get_by_text("Instructions for the model").click()
        page.get_by_label(kept).select_option("Sailor")
        expect(page.get_by_label("Instructions", exact=True)).to_have_value("Speak like a sailor.")
        site.dictate("Ahoy.")
        say(page, "Hello")
        expect(shown(page)).to_have_count(3)
        expect(shown(page).first).to_contain_text("Speak like a sailor.")
        shown(page).first.get_by_role("button", name="Edit").click()
        page.get_by_label(kept).select_option("Poet")
        editor = page.get_by_label("Edit: Instructions")
        expect(editor).to_have_value("Speak like a poet.")
        editor.fill("Speak in verse.")
        keep_under(page, None)  # the one that was picked is changed
        check_accessible(page)
        page.get_by_label(kept).select_option("Sailor")
        page.locator(".editor").get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
        expect(page.get_by_label(kept).locator("option")).to_have_text([kept, "Poet"])
        page.get_by_label(kept).select_option("Poet")
        expect(editor).to_have_value("Speak in verse.")
        page.get_by_role("button", name="Save and keep what follows").click()
        expect(shown(page).first).to_contain_text("Speak in verse.")
        expect(shown(page)).to_have_count(3)


def keep_under(page: Page, name: str | None) -> None:
    """Keep the instructions that are written under a name; None: the one that is there."""
    page.get_by_role("button", name="Keep under a name").click()
    if name is not None:
        page.get_by_label("Name of these instructions").last.fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_edit_outlives_escape_and_not_cancel(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    edit = shown(page).first.get_by_role("button", name="Edit")
    editor = page.get_by_label("Edit: You")
    edit.click()
    editor.fill("Ten minutes of work")
    page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    edit.click()
    expect(editor).to_have_value("Ten minutes of work")
    page.get_by_role("button", name="Cancel").click()
    edit.click()
    expect(editor).to_have_value("First question")


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_text_files_go_into_the_message_and_others_are_refused(page: Page, kind: str) -> None:
    field(page).fill("Look:")
    assert field(page).evaluate(_DROP, ["fence.md", list(b"```\nx\n```"), kind])
    expect(field(page)).to_have_value("Look:\n\nfence.md:\n````md\n```\nx\n```\n````")
    assert field(page).evaluate(_DROP, ["picture.png", [137, 80, 78, 71, 0, 255], kind])
    expect(page.get_by_role("alert")).to_contain_text("picture.png is no text")
    expect(field(page)).to_have_value("Look:\n\nfence.md:\n````md\n```\nx\n```\n````")


def test_files_dropped_anywhere_do_not_leave_the_page_and_on_the_list_are_imported(page: Page) -> None:
    assert page.locator("header.top").evaluate(_DROP, ["notes.txt", list(b"Remember."), "drop"])
    expect(field(page)).to_have_value("notes.txt:\n```txt\nRemember.\n```")
    told = b'{"prompt": {"message_id": "1", "role": "prompter", "text": "From a file", "replies": []}}'
    assert page.locator(".sidebar").evaluate(_DROP, ["one.json", list(told), "drop"])
    expect(page.get_by_text("1 imported.")).to_be_visible()
    expect(page.get_by_role("link", name="From a file")).to_be_visible()


def test_a_notice_says_what_is_true_and_goes_when_the_server_is_back(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    site.stop()
    shown(page).last.get_by_role("button", name="Regenerate").click()
    alert = page.get_by_role("alert").filter(has_text="cannot be reached")
    expect(alert).to_be_visible()
    expect(alert).not_to_contain_text("tried again")
    site.start()
    expect(alert).to_have_count(0)


def test_a_branch_that_is_too_long_goes_on_without_its_beginning(
    default_model: str, tmp_path: Path, browser: Browser
) -> None:
    site = Site(default_model, tmp_path, max_model_len=360)
    try:
        with open_page(browser, site.url) as page:
            text = "some words of a question " * 16
            for _ in range(3):
                converse(site, page, (text, "An answer."))
            expect(page.get_by_role("meter")).to_have_accessible_name(re.compile("about 3.. of 360 tokens"))
            site.dictate("Still here.")
            say(page, text)
            alert = page.get_by_role("alert")
            expect(alert).to_contain_text("This branch is longer than the model can read")
            check_accessible(page)
            alert.get_by_role("button", name="Leave out the beginning").click()
            expect(page.get_by_role("dialog").locator(".price")).to_contain_text("The next reply reads")
            page.get_by_role("button", name="Make this branch").click()
            expect(shown(page).last).to_contain_text("Still here.")
            expect(shown(page)).to_have_count(2)
            expect(shown(page).first).to_contain_text("2 / 2")  # all that was there is another version
            shown(page).first.get_by_role("button", name="Earlier version").click()
            expect(shown(page)).to_have_count(7)
    finally:
        site.close()


def test_a_key_that_is_not_given_can_be_given_later(site: Site, browser: Browser, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys_file(tmp_path / "keys.toml"), drain_s=0.05)
    with gateway(site.engine, config) as server, open_page(browser, server.page_url) as page:
        page.get_by_label("Key", exact=True).fill("nobody's")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("heading", name="The server does not know this key")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        say(page, "Hello")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert").filter(has_text="answers only with an API key")).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Send again").click()
        page.get_by_label("Key", exact=True).fill("red")
        site.dictate("Known.")
        page.get_by_role("button", name="Go on").click()
        expect(shown(page).last).to_contain_text("Known.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_stands_in_empty_fields_can_be_read(site: Site, browser: Browser, scheme: str) -> None:
    with open_page(browser, site.url, color_scheme=scheme) as page:
        assert field(page).evaluate(_CONTRAST) >= 4.5


def test_four_drafts_are_shown_to_who_has_never_seen_them(page: Page) -> None:
    expect(page.locator(".start-page")).to_contain_text("gibberish, on this server. It reads up to 4,096 tokens.")
    page.get_by_role("button", name="Show me branching").click()
    expect(page.locator(".column")).to_have_count(4)
    expect(page.locator(".column").get_by_text("computed for 4 drafts")).to_have_count(4)


def test_a_token_is_shown_without_drawing_the_rest_of_the_page(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    hold_in_a_reply(site, page)
    page.evaluate(_RENDERED)
    page.wait_for_function(
        "() => performance.now() - window.drawn_ms > 500"
    )  # what the new conversation brought is drawn
    page.evaluate("window.rendered.length = 0")
    site.runner.gate.open()
    site.runner.gate.close_after(40)
    expect(page.locator("article.running")).to_contain_text("word " * 40)
    rendered = page.evaluate("window.rendered")
    assert "Message" in rendered
    assert not {"Page", "Sidebar", "Head", "Saved", "Outline", "Row", "Composer", "Thread"} & set(rendered)
    site.runner.gate.open()
    expect(shown(page)).to_have_count(4)
