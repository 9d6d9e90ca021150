"""How the chat page looks: on narrow and wide screens, in light and dark, in each of its states."""

from __future__ import annotations

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


def test_type_has_four_sizes(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url) as page:
        found = set(page.evaluate(_SIZES))
        converse(site, page, THREE[0])
        page.get_by_role("button", name="1 reply").click()
        found |= set(page.evaluate(_SIZES))
        assert found == {"12px", "14px", "16px", "20px"}
