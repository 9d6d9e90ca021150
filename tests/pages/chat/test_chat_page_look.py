"""How the chat page looks: on narrow and wide screens, in light and dark, in each of its states."""

from __future__ import annotations

from itertools import pairwise

import pytest
from browser import check_accessible, open_page
from chat_site import THREE, Site, converse, regenerate, shown
from playwright.sync_api import Browser, expect

_WIDTHS = (360, 768, 1280)
_SIZES = """() => [...new Set([...document.querySelectorAll("#app *")]
  .filter((element) => element.checkVisibility())
  .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => getComputedStyle(element).fontSize))]"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", _WIDTHS)
def test_every_state_is_accessible_and_fits(site: Site, browser: Browser, width: int, scheme: str) -> None:
    how = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme, "reduced_motion": "reduce"}
    with open_page(browser, site.url, **how) as page:

        def check() -> None:
            check_accessible(page)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")

        check()
        converse(site, page, *THREE[:2])
        regenerate(site, page, "Another answer.")
        check()
        shown(page).last.get_by_role("button", name="Other actions").click()
        check()
        page.keyboard.press("Escape")
        shown(page).first.get_by_role("button", name="Branch").click()
        check()
        page.keyboard.press("Escape")
        page.get_by_label("More").click()
        page.get_by_role("button", name="Rename").click()
        check()
        page.get_by_role("textbox", name="Title of this conversation").fill("A better title")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="A better title")).to_be_visible()
        page.get_by_role("button", name="1 reply").click()
        check()


def test_actions_stand_in_one_row_on_the_narrowest_screen(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url, viewport={"width": 360, "height": 740}) as page:
        converse(site, page, THREE[0])
        regenerate(site, page, "Another answer.")
        for message in shown(page).all():
            boxes = [button.bounding_box() for button in message.get_by_role("button").all()]
            assert len(boxes) >= 4
            middles = {round(box["y"] + box["height"] / 2) for box in boxes if box}
            assert max(middles) - min(middles) <= 1, boxes


@pytest.mark.parametrize("width", _WIDTHS)
def test_nothing_wraps_is_cut_or_opens_at_its_end(site: Site, browser: Browser, width: int) -> None:
    with open_page(browser, site.url, viewport={"width": width, "height": 740}) as page:
        ideas = [box for button in page.locator(".ideas button").all() if (box := button.bounding_box())]
        assert len({box["x"] for box in ideas}) == 1
        assert all(below["y"] >= above["y"] + above["height"] + 8 for above, below in pairwise(ideas))
        converse(site, page, THREE[0])
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Keys", exact=True).click()
        dialog = page.get_by_role("dialog", name="Keys")
        for part in (dialog.get_by_role("heading", name="Anywhere"), dialog.get_by_role("button", name="Close")):
            expect(part).to_be_in_viewport(ratio=1)
        dialog.get_by_text("delete it").scroll_into_view_if_needed()
        check_accessible(page)
        page.keyboard.press("Escape")
        if width <= 900:
            page.get_by_role("button", name="Conversations", exact=True).click()
        page.get_by_role("button", name="Choose several").click()
        page.get_by_role("checkbox").first.check()
        bar = page.get_by_role("toolbar", name="Chosen conversations")
        expect(bar).to_contain_text("1 chosen")
        boxes = [box for button in bar.get_by_role("button").all() if (box := button.bounding_box())]
        assert len({round(box["y"] + box["height"] / 2) for box in boxes}) == 1
        side = page.locator(".sidebar").bounding_box()
        assert side is not None
        assert max(box["x"] + box["width"] for box in boxes) <= side["width"]


def test_type_has_four_sizes(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url) as page:
        found = set(page.evaluate(_SIZES))
        converse(site, page, THREE[0])
        page.get_by_role("button", name="1 reply").click()
        found |= set(page.evaluate(_SIZES))
        assert found == {"12px", "14px", "16px", "20px"}
