"""The outline of branches on the chat page: read, walked, folded, searched, marked, pruned; what is cached of it, and pins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import check_clean, open_page
from chat_site import THREE, Site, converse, delete, hold_in_a_reply, say, shown
from playwright.sync_api import Browser, Locator, Page, expect
from tree_stack import busy_stack

NUM_NODES = 3000
FEW = 80
"""Rows that a screen has room for, and some more."""

_COUNT_DRAWN = """async () => {
  const { options } = await import("/static/vendor/htm-preact.js");
  window.drawn = [];
  const before = options.__r;
  options.__r = (vnode) => {
    if (typeof vnode.type === "function") window.drawn.push(vnode.type.name);
    before?.(vnode);
  };
  const fill = CanvasRenderingContext2D.prototype.fill;
  CanvasRenderingContext2D.prototype.fill = function (...all) {
    window.drawn.push("dots");
    return fill.apply(this, all);
  };
}"""
_OUTLINE = {"Outline", "OutlineTree", "Row", "Words", "Dots", "dots", "RowMenu", "Size", "Legend"}


@pytest.fixture
def site(default_model: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(default_model, tmp_path)
    yield site
    site.close()


@pytest.fixture
def page(site: Site, browser: Browser) -> Iterator[Page]:
    with open_page(browser, site.url, viewport={"width": 1280, "height": 800}) as page:
        yield page


def row(page: Page, name: str) -> Locator:
    """The line that begins so."""
    return page.get_by_role("treeitem", name=re.compile(f"^{re.escape(name)}"))


def tree(page: Page) -> Locator:
    return page.get_by_role("tree", name="Branches of this conversation")


def levels(page: Page) -> list[tuple[str, int]]:
    """The lines as they are read, each with its level."""
    rows = page.get_by_role("treeitem")
    told = rows.evaluate_all("(all) => all.map((one) => [one.ariaLabel, Number(one.ariaLevel), one.offsetTop])")
    return [(name, level) for name, level, _ in sorted(told, key=lambda each: each[2])]


def fork(site: Site, page: Page) -> None:
    """Three turns, and another way from the first reply."""
    converse(site, page, *THREE)
    shown(page).nth(1).get_by_role("button", name="Branch").click()
    site.dictate("Elsewhere.")
    say(page, "Another way")
    expect(shown(page).last).to_contain_text("Elsewhere.")


def choose(page: Page, of: Locator, name: str | re.Pattern[str]) -> None:
    """Do something with the branch of a line, by its menu."""
    of.get_by_role("button", name="Actions").click()
    page.locator("#row-menu").get_by_role("button", name=name).click()


def test_branches_are_read_folded_marked_and_opened_by_keys(site: Site, page: Page) -> None:
    fork(site, page)
    expect(page.get_by_text("8 messages, 2 branches")).to_be_visible()
    assert levels(page) == [
        ("You: First question", 1),
        ("Reply: First answer., 2 versions follow", 2),
        ("You: Second question", 2),
        ("Reply: Third answer., 3 turns", 3),
        ("You: Another way", 2),
        ("Reply: Elsewhere., shown now", 3),
    ]
    check_clean(page)
    tree(page).focus()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")  # to its first line
    page.keyboard.press("ArrowRight")  # which unfolds
    expect(row(page, "Reply: Second answer.")).to_have_attribute("aria-level", "4")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")  # to what it hangs below
    page.keyboard.press("ArrowLeft")  # which folds
    expect(row(page, "You: Second question, 4 turns")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("s")
    expect(row(page, "You: Second question, 4 turns, starred")).to_be_visible()
    page.keyboard.press("F2")
    page.get_by_role("textbox", name="Name of this branch").fill("The long way")
    page.keyboard.press("Enter")
    expect(row(page, "You: The long way, 4 turns, starred")).to_be_visible()
    expect(tree(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(shown(page)).to_have_count(6)
    expect(row(page, "You: The long way, 4 turns, starred, shown now")).to_have_attribute("aria-current", "true")
    page.reload()
    expect(row(page, "You: The long way, 4 turns, starred")).to_have_attribute("aria-expanded", "false")
    page.go_back()
    expect(shown(page).last).to_contain_text("Elsewhere.")
    tree(page).focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("c")
    expect(page.locator(".column")).to_have_count(2)


def test_a_pruned_branch_comes_back_where_it_stood(site: Site, page: Page) -> None:
    fork(site, page)
    tree(page).focus()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")
    expect(page.get_by_text("4 messages thrown away: “Second question”")).to_be_visible()
    expect(page.get_by_text("4 messages, 1 branch")).to_be_visible()
    check_clean(page)
    page.keyboard.press("Control+z")
    expect(page.get_by_text("8 messages, 2 branches")).to_be_visible()
    assert [name for name, level in levels(page) if level == 2][1:] == ["You: Second question", "You: Another way"]

    choose(page, row(page, "You: Another way"), re.compile("Prune"))  # which is shown
    expect(shown(page)).to_have_count(6)
    page.reload()
    page.get_by_role("button", name="Thrown away branches").click()
    check_clean(page)
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    expect(row(page, "You: Another way")).to_be_visible()
    assert [name for name, level in levels(page) if level == 2][1:] == ["You: Second question", "You: Another way"]

    delete(shown(page).nth(2))
    expect(page.get_by_text("4 messages thrown away: “Second question”")).to_be_visible()
    page.get_by_role("button", name="Thrown away branches").click()
    for answer in ("Cancel", "Delete for good"):
        page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
        asked = page.get_by_role("dialog", name="Delete for good?")
        expect(asked).to_contain_text("4 messages will be gone for good: “Second question”")
        expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
        check_clean(page)
        asked.get_by_role("button", name=answer).click()
    expect(page.get_by_text("No branch of this conversation was thrown away.")).to_be_visible()


def test_what_is_looked_for_is_shown_among_the_branches(site: Site, page: Page) -> None:
    fork(site, page)
    page.get_by_label("Find in this conversation").fill("second  ANSWER")
    expect(page.get_by_text("1 message found")).to_be_visible()
    expect(row(page, "Reply: Second answer.").locator("mark")).to_have_text("Second answer")
    assert [name for name, _ in levels(page)] == [
        "You: First question, shown now",
        "You: Second question",
        "Reply: Second answer.",
    ]
    check_clean(page)
    row(page, "Reply: Second answer.").click()
    expect(shown(page).last).to_contain_text("Third answer.")
    page.get_by_label("Find in this conversation").fill("nowhere")
    expect(page.get_by_text("None found.")).to_be_visible()
    expect(tree(page)).to_have_count(0)
    page.get_by_label("Find in this conversation").fill("")
    expect(row(page, "You: Another way")).to_be_visible()
    page.get_by_label("Search conversations").fill("elsewhere")
    expect(row(page, "Reply: Elsewhere.").locator("mark")).to_have_text("Elsewhere")


def test_a_reply_is_marked_while_it_streams_and_its_tokens_draw_nothing(site: Site, page: Page) -> None:
    fork(site, page)
    hold_in_a_reply(site, page)
    running = page.get_by_role("treeitem", name=re.compile("being written"))
    expect(running).to_have_count(1)
    expect(running).to_have_accessible_name(re.compile("^Reply: word word .*, 3 turns, being written"))
    row(page, "You: Another way").locator(".twisty").click()
    expect(running).to_have_accessible_name(re.compile("^You: Another way, 4 turns, being written"))
    page.evaluate(_COUNT_DRAWN)
    page.wait_for_function("async () => { await new Promise(requestAnimationFrame); return true; }")
    page.evaluate("window.drawn.length = 0")
    site.runner.gate.open()
    site.runner.gate.close_after(40)
    expect(page.locator("article.running")).to_contain_text("word " * 40)
    drawn = page.evaluate("window.drawn")
    assert "Message" in drawn
    assert not _OUTLINE & set(drawn)
    site.runner.gate.open()
    expect(running).to_have_count(0)


def test_on_a_phone_a_touch_does_all(site: Site, browser: Browser) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with open_page(browser, site.url) as page:
        fork(site, page)
        address = page.url
    with open_page(browser, address, **phone) as page:
        page.get_by_role("button", name="Branches").tap()
        expect(row(page, "You: Second question")).to_be_visible()
        check_clean(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        for part in (".twisty", ".row-menu"):
            box = row(page, "You: Second question").locator(part).bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 24
        row(page, "You: Second question").get_by_role("button", name="Actions").tap()
        check_clean(page)
        page.locator("#row-menu").get_by_role("button", name="Star").tap()
        expect(row(page, "You: Second question, starred")).to_be_visible()
        row(page, "You: Second question").locator(".row-text").tap()
        expect(tree(page)).to_be_hidden()
        expect(shown(page).last).to_contain_text("Third answer.")


def test_what_is_cached_is_told_and_pinned_and_leads_to_the_tree_and_back(default_model: str, browser: Browser) -> None:
    with (
        busy_stack(default_model) as (server, _, _),
        open_page(browser, f"http://{server.address}/", viewport={"width": 1280, "height": 800}) as page,
    ):
        page.evaluate("localStorage.setItem('radixkv.settings', JSON.stringify({ n: 1, max_tokens: 48 }))")
        page.reload()
        question = "Where does the river begin, and through which towns does it flow?"
        say(page, question)
        expect(page.locator("article.assistant .cost")).to_be_visible()
        line = row(page, "You: Where does the river begin")
        expect(line).to_have_accessible_name(re.compile("answers at once"))
        check_clean(page)
        choose(page, line, "Pin for 5 minutes")
        expect(line).to_have_accessible_name(re.compile("pinned for 5 min"))
        pins = "async () => (await (await fetch('/v1/radixkv/pins')).json()).data.length"
        assert page.evaluate(pins) == 1
        page.reload()
        expect(line).to_have_accessible_name(re.compile("pinned for 5 min"))
        choose(page, line, re.compile("Unpin"))
        expect(line).not_to_have_accessible_name(re.compile("pinned"))
        assert page.evaluate(pins) == 0

        choose(page, line, "Show in the tree")
        expect(page).to_have_url(re.compile("/tree#conv_"))
        back = page.locator(".in-chat a")
        expect(back).to_be_visible()
        back.click()
        expect(page.locator("article.user")).to_contain_text(question)


def large_tree(site: Site, page: Page) -> None:
    """A conversation of many branches, opened."""
    messages: list[dict[str, Any]] = []
    for place in range(NUM_NODES):
        above = None if place == 0 else messages[place - 1 if place % 3 else place // 2 - 1 + place // 2 % 2]
        role = "user" if above is None or above["role"] == "assistant" else "assistant"
        message = f"msg_{place:032x}"
        messages.append(
            {"id": message, "parent": above and above["id"], "role": role, "text": f"Message {place}", "created": place}
        )
    document = {"format": "radixkv-conversation", "version": 1, "title": "Large", "messages": messages}
    told = page.evaluate(
        "(body) => fetch('/v1/radixkv/conversations/import',"
        " { method: 'POST', headers: { 'Content-Type': 'application/json' }, body }).then((answer) => answer.json())",
        json.dumps(document),
    )
    page.goto(f"{site.url}#{told['conversations'][0]['id']}")
    expect(page.get_by_text(f"{NUM_NODES:,} messages")).to_be_visible()


def test_of_many_branches_those_in_sight_are_there_and_a_reply_draws_few(site: Site, page: Page) -> None:
    large_tree(site, page)
    rows = page.get_by_role("treeitem")
    page.wait_for_function("() => document.querySelectorAll('[role=treeitem]').length > 10")
    assert rows.count() < FEW
    tree(page).focus()
    page.keyboard.press("End")
    last = page.locator(".outline-row.active")
    expect(last).to_be_in_viewport()
    assert rows.count() < FEW
    assert last.get_attribute("id") == tree(page).get_attribute("aria-activedescendant")
    page.keyboard.press("Enter")
    expect(last).to_have_attribute("aria-current", "true")
    page.evaluate(_COUNT_DRAWN)
    site.dictate("Done.")
    say(page, "One more")
    expect(shown(page).last).to_contain_text("Done.")
    expect(page.get_by_text(f"{NUM_NODES + 2:,} messages")).to_be_visible()
    drawn = page.evaluate("window.drawn")
    assert drawn.count("Row") < 4 * FEW
    assert drawn.count("Thread") <= 4  # what the server tells at once is shown at once
    assert rows.count() < FEW
