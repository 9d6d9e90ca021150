"""The chat page's order among conversations, their settings, and who one is: by mouse, by keys alone, on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import check_clean, open_page
from chat_site import THREE, Site, converse, regenerate, say, shown
from chat_stack import gateway, keys_file
from playwright.sync_api import Browser, Download, Locator, Page, expect

from radixkv.gateway.config import GatewayConfig

WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 360, "height": 740}
MANY = 5000


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    with open_page(browser, site.url, viewport=WIDE) as page:
        yield page


def keep(site: Site, *titles: str, **marks: Any) -> None:
    """Have conversations on the server, the first one written to last, each as many days ago as its title ends with."""
    now = datetime.now()
    documents = []
    for place, title in enumerate(titles):
        days = int(title.rpartition(" ")[2]) if title[-1].isdigit() else 0
        at = (now - timedelta(days=days)).timestamp() - place / 1000
        messages = [{"id": "m", "role": "user", "text": f"About {title}", "created": at}]
        about = {"format": "radixkv-conversation", "version": 1, "id": title, "title": title, "updated": at}
        documents.append({**about, "messages": messages, **marks})
    answer = httpx.post(f"{site.url}v1/radixkv/conversations/import", json=documents, timeout=60).raise_for_status()
    assert len(answer.json()["conversations"]) == len(titles)


def entries(page: Page) -> Locator:
    return page.locator(".conversations .title")


def entry(page: Page, title: str) -> Locator:
    return page.locator(".conversations li").filter(has_text=title)


def act(page: Page, title: str, action: str) -> None:
    """Choose an action of a conversation's menu."""
    entry(page, title).get_by_role("button", name="Actions for").click()
    entry(page, title).get_by_role("button", name=action, exact=True).click()


def check(page: Page) -> None:
    check_clean(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def has_focus(page: Page, selector: str) -> None:
    page.wait_for_function("(selector) => document.activeElement.matches(selector)", arg=selector)


def test_conversations_are_put_in_order_by_keys_alone(site: Site, page: Page) -> None:
    keep(site, "Apples", "Pears", "Plums 1", "Figs 3", "Dates 40")
    page.reload()
    month = f"{datetime.now() - timedelta(days=40):%B %Y}"
    expect(page.locator(".conversations .group")).to_have_text(["Today", "Yesterday", "Last 7 days", month])
    check(page)
    page.keyboard.press("Control+k")
    has_focus(page, "#search")
    page.keyboard.press("Tab")
    has_focus(page, ".entry")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")  # Pears
    expect(entries(page)).to_have_text(["Apples", "Plums 1", "Figs 3", "Dates 40"])
    expect(page.get_by_text("“Pears” deleted.")).to_be_visible()
    check(page)
    has_focus(page, ".entry")
    page.keyboard.press("Control+z")
    expect(entries(page)).to_have_text(["Apples", "Pears", "Plums 1", "Figs 3", "Dates 40"])
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    has_focus(page, "[aria-label='Actions for “Dates 40”']")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Pin", exact=True)).to_be_visible()
    check(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".conversations .group").first).to_have_text("Pinned")
    expect(entries(page).first).to_have_text("Dates 40")
    page.wait_for_function("() => document.activeElement.textContent.includes('Dates 40')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Dates 40")).to_be_visible()
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_role("heading", name="New chat")).to_be_visible()
    has_focus(page, "#composer-text")


def test_several_are_chosen_tagged_archived_saved_thrown_away_and_brought_back(site: Site, page: Page) -> None:
    keep(site, "Apples", "Pears", "Plums", "Figs")
    page.reload()
    page.get_by_role("button", name="Choose several").click()
    box = page.locator(".conversations input")
    box.nth(0).click()
    box.nth(2).click(modifiers=["Shift"])
    bar = page.get_by_role("toolbar", name="Chosen conversations")
    expect(bar).to_contain_text("3 chosen")
    check(page)
    bar.get_by_role("button", name="Tags").click()
    check(page)
    page.get_by_label("Another tag").fill("fruit")
    page.keyboard.press("Enter")
    tag = page.get_by_role("group", name="Tags").get_by_role("button", name="fruit")
    expect(tag).to_contain_text("3")
    expect(bar).to_have_count(0)
    act(page, "Plums", "Tags")
    page.get_by_label("fruit").uncheck()
    page.get_by_role("button", name="Save", exact=True).click()
    tag.click()
    expect(entries(page)).to_have_text(["Apples", "Pears"])
    check(page)

    act_on_all(page, "Archive")
    expect(page.get_by_text("2 conversations archived.")).to_be_visible()
    expect(page.get_by_text("None found.")).to_be_visible()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(entries(page)).to_have_text(["Apples", "Pears"])
    check(page)
    with page.expect_download() as saving:
        act_on_all(page, "Export")
    saved = read(saving.value)
    assert [(each["title"], each["tags"], each["archived"]) for each in saved] == [
        ("Apples", ["fruit"], True),
        ("Pears", ["fruit"], True),
    ]
    act_on_all(page, "Delete")
    expect(page.get_by_text("2 conversations deleted.")).to_be_visible()

    page.get_by_role("button", name="Trash", exact=True).click()
    expect(entries(page)).to_have_text(["Apples", "Pears"])
    expect(page.get_by_text("30 days left")).to_have_count(2)
    check(page)
    act(page, "Pears", "Restore")
    expect(entries(page)).to_have_text(["Apples"])
    page.get_by_role("button", name="Empty it").click()
    check(page)
    page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
    expect(page.get_by_text("The trash is empty.")).to_be_visible()
    page.get_by_label("File to import").set_input_files(saving.value.path())
    expect(page.get_by_text("2 imported.")).to_be_visible()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(entries(page)).to_have_text(["Apples", "Pears", "Pears"])  # the one that was restored, and its copy
    expect(entry(page, "Apples")).to_contain_text("fruit")


def act_on_all(page: Page, action: str) -> None:
    """Choose all that are listed, and do something with them."""
    page.get_by_role("button", name="Choose several").click()
    bar = page.get_by_role("toolbar", name="Chosen conversations")
    bar.get_by_role("button", name="All").click()
    bar.get_by_role("button", name=action).click()


def read(download: Download) -> Any:
    return json.loads(Path(download.path()).read_text())


def test_the_conversation_that_is_shown_is_deleted_and_comes_back(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    page.get_by_label("More").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="New chat")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_text("")
    expect(entries(page)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(shown(page)).to_have_count(2)
    expect(entries(page)).to_have_text(["First question"])
    page.get_by_label("More").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("A better title")
    page.keyboard.press("Enter")
    expect(entries(page)).to_have_text(["A better title"])


def test_of_five_thousand_conversations_those_in_sight_are_there(site: Site, page: Page) -> None:
    for begin in range(0, MANY, 1000):
        keep(site, *(f"Talk no. {number}, of day 0" for number in reversed(range(begin, begin + 1000))))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    expect(entries(page)).to_have_count(50)
    assert len([url for url in asked if "/conversations?" in url]) <= 4
    page.locator(".conversations [data-main]").first.focus()
    page.keyboard.press("End")  # where the next ones are asked for
    expect(in_focus(page)).to_have_text("Talk no. 4950, of day 0")
    expect(page.get_by_role("link", name="Talk no. 4925, of day 0")).to_be_attached()
    page.get_by_role("button", name="Choose several").click()
    bar = page.get_by_role("toolbar", name="Chosen conversations")
    bar.get_by_role("button", name="All").click()
    expect(bar).to_contain_text("5000 chosen")
    bar.get_by_role("button", name="Done").click()

    page.evaluate("document.querySelector('.conversations').scrollTop = 0")
    expect(entries(page).first).to_be_in_viewport()
    page.locator(".conversations [data-main]").first.focus()
    page.keyboard.press("End")
    expect(in_focus(page)).to_have_text("Talk no. 0, of day 0")
    expect(in_focus(page)).to_be_in_viewport()
    last = page.locator(".conversations li:focus-within")
    expect(last).to_have_attribute("aria-posinset", "5000")
    expect(last).to_have_attribute("aria-setsize", "5000")
    assert entries(page).count() < 150
    check(page)
    page.keyboard.press("ArrowUp")
    expect(in_focus(page)).to_have_text("Talk no. 1, of day 0")
    page.evaluate("document.querySelector('.conversations').scrollTop = 90000")
    expect(entries(page).nth(60)).to_be_attached()
    expect(in_focus(page)).to_have_text("Talk no. 1, of day 0")  # it is there still
    assert entries(page).count() < 150
    page.keyboard.press("Delete")
    expect(in_focus(page)).to_have_text("Talk no. 0, of day 0")
    expect(in_focus(page)).to_be_in_viewport()
    page.keyboard.press("Control+z")
    expect(page.get_by_role("link", name="Talk no. 1, of day 0")).to_be_attached()
    page.keyboard.press("ArrowUp")
    expect(in_focus(page)).to_have_text("Talk no. 1, of day 0")
    page.keyboard.press("Home")
    expect(in_focus(page)).to_have_text("Talk no. 4999, of day 0")
    expect(page.get_by_label("Search conversations")).to_be_in_viewport()


def in_focus(page: Page) -> Locator:
    """The title of the conversation that has the focus."""
    return page.locator(".conversations :focus .title")


def test_settings_belong_to_the_conversation_and_a_reply_is_drawn_again_otherwise(
    default_model: str, tmp_path: Path, browser: Browser
) -> None:
    site = Site(default_model, tmp_path, adapters=("poet",), num_parameters=134_515_008)
    with open_page(browser, site.url, viewport=WIDE) as page:
        expect(page.locator(".model-line")).to_contain_text("gibberish, 135M parameters, on this server.")
        page.get_by_role("button", name="1 reply").click()
        page.get_by_label("Temperature").fill("0.5")
        check(page)
        converse(site, page, THREE[0])
        page.get_by_label("Temperature").fill("0.25")
        page.get_by_label("Stop at").fill("END\n\\n\\nYou:")
        page.get_by_label("Model").select_option("poet")
        site.dictate("Second answer.")
        say(page, "Second question")  # at once: it waits until the server has them
        expect(shown(page)).to_have_count(4)
        drawn = site.engine.samplings[-1]
        assert (drawn.temperature, tuple(drawn.stop)) == (0.25, ("END", "\n\nYou:"))
        assert site.engine.requests[-1].adapter == "poet"
        expect(page.locator(".served")).to_have_text("poet")
        cost = shown(page).last.locator(".cost")
        expect(cost).to_have_attribute("title", re.compile(r"model poet, temperature 0\.25"))

        draw_again(site, page)

        page.reload()
        page.get_by_role("button", name="1 reply, temperature 0.25").click()
        expect(page.get_by_label("Stop at")).to_have_value("END\n\\n\\nYou:")
        page.get_by_role("button", name="New chat").click()
        expect(page.get_by_label("Temperature")).to_have_value("0.5")
        expect(page.locator(".served")).to_have_text("gibberish")
        entry(page, "First question").get_by_role("link").click()
        expect(page.get_by_label("Temperature")).to_have_value("0.25")
        page.get_by_role("button", name="Reset to the model's own").click()
        expect(page.get_by_label("Temperature")).to_have_value("")
        site.dictate("By its own.")
        shown(page).last.get_by_role("button", name="Regenerate").click()
        expect(shown(page).last).to_contain_text("By its own.")
        assert site.engine.requests[-1].adapter == ""
        page.get_by_role("button", name="Use for new conversations").click()
        page.get_by_role("button", name="New chat").click()
        expect(page.get_by_label("Temperature")).to_have_value("")
    site.close()


def draw_again(site: Site, page: Page) -> None:
    """Ask for further replies, each drawn otherwise."""
    cost = shown(page).last.locator(".cost")
    again = shown(page).last.get_by_role("button", name="Again with…")
    for way, held in (("Hotter: 0.55", "temperature 0.55"), ("With gibberish", "model gibberish")):
        site.dictate("Another answer.")
        again.click()
        check(page)
        shown(page).last.get_by_role("button", name=way).click()
        expect(cost).to_have_attribute("title", re.compile(re.escape(held)))
    site.dictate("A third one.")
    again.click()
    shown(page).last.get_by_role("button", name="Other settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Temperature").fill("7")
    page.keyboard.press("Enter")
    expect(dialog.get_by_label("Temperature")).to_be_focused()
    dialog.get_by_label("Temperature").fill("0")
    dialog.get_by_label("Longest reply").fill("9")
    check(page)
    page.keyboard.press("Enter")
    expect(cost).to_have_attribute("title", re.compile("temperature 0, .*max tokens 9"))
    expect(shown(page).last).to_contain_text("4 / 4")
    assert site.engine.samplings[-1].temperature == 0


def test_one_is_told_who_one_is_and_signs_out(site: Site, browser: Browser, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml", requests_per_minute=600, max_concurrent=3)
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=0.05)
    with gateway(site.engine, config) as server, open_page(browser, server.page_url, viewport=WIDE) as page:

        def enter(key: str) -> None:
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Go on").click()

        enter("red")
        converse(site, page, THREE[0])
        page.get_by_label("Message", exact=True).fill("Not sent")
        page.get_by_role("button", name="Account: red").click()
        dialog = page.get_by_role("dialog")
        for words in ("knows you by your key as red", "Left of 600 requests a minute", "0 of 3 at once", "1 of 10,000"):
            expect(dialog).to_contain_text(words)
        check(page)
        dialog.get_by_role("button", name="Change the key").click()
        enter("blue")
        page.get_by_role("button", name="Account: blue").click()
        expect(dialog).to_contain_text("Limits a minutenone")
        dialog.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key", exact=True)).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).filter((name) => /key|draft/.test(name))") == []
        enter("red")
        expect(entries(page)).to_have_text(["First question"])


def test_a_server_without_keys_says_so(page: Page) -> None:
    page.get_by_role("button", name="Account").click()
    expect(page.get_by_role("dialog")).to_contain_text("asks nobody for a key")
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    check(page)


def test_keys_lead_everywhere_and_sides_stay_away(site: Site, page: Page) -> None:
    converse(site, page, *THREE[:2])
    regenerate(site, page, "Another answer.")
    page.get_by_label("Message", exact=True).press("ArrowUp")
    editor = page.get_by_label("Edit: You")
    expect(editor).to_be_focused()
    expect(editor).to_have_value("Second question")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    check(page)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("/?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("/?")

    width = page.locator("main").bounding_box()
    for name in ("Conversations", "Branches"):
        page.get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    page.reload()
    expect(shown(page)).to_have_count(4)
    for side in (".sidebar", ".map"):
        expect(page.locator(side)).to_be_hidden()
    after = page.locator("main").bounding_box()
    assert width is not None
    assert after is not None
    assert after["width"] == WIDE["width"] > width["width"] + 400
    check(page)
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search conversations")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_of_it_works_on_a_phone(site: Site, browser: Browser, scheme: str) -> None:
    keep(
        site, "Apples", "A conversation with a rather long title that does not fit", tags=["fruit", "a rather long tag"]
    )
    how: dict[str, Any] = {"viewport": NARROW, "color_scheme": scheme, "reduced_motion": "reduce"}
    with open_page(browser, site.url, **how) as page:
        page.get_by_role("button", name="Conversations", exact=True).click()
        expect(entries(page)).to_have_count(2)
        check(page)
        entry(page, "Apples").get_by_role("button", name="Actions for").click()
        check(page)
        entry(page, "Apples").get_by_role("button", name="Delete").click()
        check(page)
        page.get_by_role("button", name="Undo").click()
        expect(entries(page)).to_have_count(2)
        page.get_by_role("button", name="Choose several").click()
        page.locator(".conversations input").first.check()
        check(page)
        page.get_by_role("button", name="Account").click()
        check(page)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="1 reply").click()
        check(page)
        expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
        boxes = page.locator(".settings :is(input, select, textarea, button)")
        assert min(box["height"] for box in map(Locator.bounding_box, boxes.all()) if box) >= 24


def test_a_change_in_another_tab_is_seen_in_the_list(site: Site, page: Page) -> None:
    converse(site, page, THREE[0])
    other = page.context.new_page()
    other.goto(page.url)
    expect(shown(other)).to_have_count(2)
    act(other, "First question", "Pin")
    expect(page.locator(".conversations .group")).to_have_text(["Pinned"])
    act(other, "First question", "Archive")
    expect(entries(page)).to_have_count(0)
    expect(shown(page)).to_have_count(2)  # it stays open
    other.close()
