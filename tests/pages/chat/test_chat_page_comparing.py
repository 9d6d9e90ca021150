"""The chat page's branches side by side: what they share and differ in, on cards that are chosen by keys, clicks and taps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browser import check_accessible, open_page
from chat_site import THREE, Site, converse, say, shown
from playwright.sync_api import Browser, Page, expect

NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
BEGINNING = "All of them begin with these very words, "


@pytest.fixture
def site(default_model: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(default_model, tmp_path)
    yield site
    site.close()


def fits(page: Page) -> None:
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def regenerate(site: Site, page: Page, answer: str) -> None:
    site.dictate(answer)
    shown(page).last.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text(answer)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=lambda size: f"{size['width']} px")
def test_what_branches_share_and_differ_in_is_seen_at_once(site: Site, browser: Browser, size: dict[str, int]) -> None:
    with open_page(browser, site.url, viewport=size) as page:
        converse(site, page, ("Tell", BEGINNING + "and the first ends red."))
        page.get_by_role("button", name="1 reply").click()
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_label("Seed").fill("7")
        regenerate(site, page, BEGINNING + "and the second ends blue.")
        page.get_by_label("Temperature").fill("0.25")
        regenerate(site, page, BEGINNING + "but the third never ends.")
        shown(page).last.focus()
        page.keyboard.press("c")
        cards = page.locator(".column")
        expect(cards).to_have_count(3)
        expect(page.get_by_role("region", name="What all begin with")).to_contain_text(BEGINNING.strip())
        expect(cards.get_by_text("All of them begin")).to_have_count(0)
        expect(cards.nth(0)).to_contain_text("and the first ends red.")
        expect(cards.nth(1).locator(".differs")).to_have_text("temperature 0.5 · top p 1 · seed 7")
        expect(cards.nth(2).locator(".differs")).to_have_text("temperature 0.25 · top p 1 · seed 7")
        expect(page.get_by_role("complementary")).to_have_count(0)  # the sides are hidden
        fits(page)
        page.keyboard.press("d")
        expect(page.get_by_role("button", name="Differences")).to_have_attribute("aria-pressed", "true")
        expect(cards.nth(1).locator("del")).to_have_text(["first", "red"])
        expect(cards.nth(1).locator("ins")).to_have_text(["second", "blue"])
        expect(cards.nth(0).locator("ins, del")).to_have_count(0)
        fits(page)
        cards.nth(1).get_by_role("button", name="Take branch 2 out").click()
        expect(cards).to_have_count(2)
        expect(cards.get_by_role("button", name="Take branch")).to_have_count(0)
        page.keyboard.press("d")
        expect(page.locator("ins, del")).to_have_count(0)
        page.keyboard.press("2")
        expect(cards).to_have_count(0)
        expect(shown(page).last).to_contain_text("but the third never ends.")


def test_short_drafts_stand_in_a_grid_and_long_ones_in_columns(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url, viewport=WIDE) as page:
        page.get_by_role("button", name="1 reply").click()
        page.get_by_label("Drafts at once").fill("6")
        page.get_by_label("Longest reply").fill("8")
        say(page, "Six, please")
        cards = page.locator(".column")
        expect(cards).to_have_count(6)
        expect(cards.get_by_text("computed for 6 drafts")).to_have_count(6)
        tops = {round(box["y"]) for card in cards.all() if (box := card.bounding_box())}
        assert len(tops) == 2, "four and two"
        fits(page)
        page.set_viewport_size(NARROW)
        boxes = [box for card in cards.all() if (box := card.bounding_box())]
        assert len({round(box["x"]) for box in boxes}) == 1, "one below the other"
        assert all(one["y"] + one["height"] <= other["y"] for one, other in pairwise(boxes))
        fits(page)
        page.set_viewport_size(WIDE)
        page.get_by_role("button", name="Back").click()
        page.get_by_role("button", name="New chat").click()
        page.get_by_label("Drafts at once").fill("1")
        page.get_by_label("Longest reply").fill("")
        converse(site, page, ("Long ones", "word " * 300))
        regenerate(site, page, "Short.")
        shown(page).last.get_by_role("button", name="Compare").click()
        expect(cards).to_have_count(2)
        text = page.get_by_role("region", name="Text of branch 1")
        assert text.evaluate("part => part.scrollHeight > part.clientHeight")
        tops = {round(box["y"]) for card in cards.all() if (box := card.bounding_box())}
        assert len(tops) == 1
        fits(page)


def test_any_branches_are_chosen_by_taps(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url) as page:
        converse(site, page, *THREE[:2])
        regenerate(site, page, "Another second answer.")
        site.dictate("Elsewhere.")
        shown(page).first.get_by_role("button", name="Reply again").click()
        expect(shown(page).last).to_contain_text("Elsewhere.")
        address = page.url
    with open_page(browser, address, viewport=NARROW, has_touch=True, is_mobile=True) as page:
        page.get_by_role("button", name="More").tap()
        page.get_by_role("button", name="Set branches side by side").tap()
        dialog = page.get_by_role("dialog", name="Branches side by side")
        boxes = dialog.get_by_role("checkbox")
        expect(boxes).to_have_count(3)
        expect(boxes.nth(0)).to_be_checked()  # the one that is shown
        expect(dialog.get_by_role("button", name="side by side")).to_be_disabled()
        fits(page)
        dialog.get_by_text("Another second answer.").tap()
        dialog.get_by_role("button", name="Set 2 side by side").tap()
        cards = page.locator(".column")
        expect(cards).to_have_count(2)
        expect(page.get_by_text("All go on from: “First question”")).to_be_visible()
        fits(page)
        page.get_by_role("button", name="Choose branches").tap()
        dialog.get_by_role("checkbox", name=re.compile("Reply: Second answer")).check()
        dialog.get_by_role("button", name="Set 3 side by side").tap()
        expect(cards).to_have_count(3)
        cards.filter(has_text="Another second answer.").get_by_role("button", name="Go on with this one").tap()
        expect(shown(page).last).to_contain_text("Another second answer.")
