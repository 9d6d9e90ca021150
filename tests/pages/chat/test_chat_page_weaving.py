"""The chat page within a branch: messages corrected in place, instructions given later, replies gone on with from any word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from browser import check_accessible, open_page
from chat_site import THREE, Site, converse, hold_in_a_reply, say, shown
from chat_stack import GibberishRunner, chat_text
from playwright.sync_api import Browser, Locator, Page, expect
from tree_stack import busy_stack

from radixkv.worker.generations.text import ChatText

NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
PRICE = re.compile(r"The next reply computes ([\d,]+) of ([\d,]+) tokens anew; the others are cached\.")

MARKED = r"""# Alpha *beta* `gamma`

Delta **epsilon** zeta_eta &amp; theta\* [iota](http://kappa.test/lambda) mu_nu_ ~~xi~~ omicron $a + b$ pi.
rho

> sigma
> - tau **up**silon

1. phi
2. - [x] chi

```python
psi = "omega"  # один
```

| два | три |
|-----|----:|
| четыре | `пять` |

日本語の文。 👩‍👩‍👧 last![bild](http://a.test/b.png) end
"""
_PLACES = """async (source) => {
  const { placeOf, wordsOf } = await import("/static/chat/text/places.js");
  const text = [...document.querySelectorAll("article .markdown")].at(-1);
  const found = [];
  for (const { node, from, to } of wordsOf(text)) {
    const range = document.createRange();
    range.setStart(node, from);
    range.setEnd(node, to);
    const place = await placeOf(text, source, range);
    found.push([range.toString(), place && source.slice(place.begin, place.end), place?.begin]);
  }
  return found;
}"""


class Busy(NamedTuple):
    """A site whose cache service tells what is cached."""

    url: str
    runner: GibberishRunner
    text: ChatText

    def dictate(self, *replies: str) -> None:
        """What the model says next, each up to its end."""
        self.runner.dictate(*replies)

    def ask(self, page: Page, path: str, body: Any = None) -> Any:
        """What the API tells of the conversation that a page shows."""
        conversation = page.url.split("#")[1].split("/")[0]
        address = f"{self.url}v1/radixkv/conversations/{conversation}{path}"
        answer = httpx.post(address, json=body, timeout=60) if body else httpx.get(address, timeout=60)
        return answer.raise_for_status().json()

    def open(self, page: Page, question: str, answer: str) -> None:
        """Show a conversation of two messages."""
        messages = [{"role": "user", "text": question}, {"role": "assistant", "text": answer}]
        made = httpx.post(f"{self.url}v1/radixkv/conversations", json={"messages": messages}, timeout=60).json()
        page.goto(f"{self.url}#{made['id']}")
        expect(shown(page)).to_have_count(2)

    def leaf(self, page: Page) -> Any:
        """The last message that a page shows, as the API tells it."""
        last = page.locator("article").last.get_attribute("id")
        return next(message for message in self.ask(page, "")["messages"] if message["id"] == last)


@pytest.fixture(scope="module")
def running(default_model: str) -> Iterator[Busy]:
    with busy_stack(default_model) as (server, _, runner):
        yield Busy(f"http://{server.address}/", runner, chat_text(default_model))


@pytest.fixture
def busy(running: Busy) -> Iterator[Busy]:
    yield running
    running.runner.gate.open()


def fits(page: Page) -> None:
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def edit(page: Page, message: Locator, name: str, text: str) -> None:
    message.get_by_role("button", name="Edit").click()
    page.get_by_label(f"Edit: {name}").fill(text)


def keep(busy: Busy, page: Page) -> None:
    """Save an edit and keep what follows, once its cost has been told; that was true."""
    price = page.locator(".price")
    expect(price).to_have_text(PRICE)
    expect(price).to_have_attribute("aria-busy", "false")
    found = PRICE.search(price.inner_text())
    assert found is not None
    fits(page)
    last = page.locator("article").last
    before = last.get_attribute("id") or ""
    page.get_by_role("button", name="Save and keep what follows").click()
    expect(price).to_have_count(0)
    expect(last).not_to_have_id(before)
    (cost,) = busy.ask(page, "/costs", {"messages": [last.get_attribute("id")]})["messages"]
    assert [f"{cost['computed_tokens']:,}", f"{cost['prompt_tokens']:,}"] == list(found.groups())


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=lambda size: f"{size['width']} px")
def test_a_branch_is_told_anew_and_keeps_its_turns(busy: Busy, browser: Browser, size: dict[str, int]) -> None:
    with open_page(browser, busy.url, viewport=size) as page:
        converse(busy, page, *THREE[:2])
        edit(page, shown(page).first, "You", "First question, corrected")
        expect(
            page.get_by_text("the 3 messages below are copied as they are, and no reply is drawn again")
        ).to_be_visible()
        keep(busy, page)
        texts = ("First question, corrected", "First answer.", "Second question", "Second answer.")
        for message, text in zip(shown(page).all(), texts, strict=True):
            expect(message).to_contain_text(text)
        expect(shown(page).first).to_contain_text("2 / 2")
        expect(shown(page).last.get_by_label("Versions")).to_have_count(0)

        edit(page, shown(page).nth(1), "Reply", "First answer, by hand.")
        keep(busy, page)
        expect(shown(page)).to_have_count(4)
        expect(shown(page).nth(1)).to_contain_text("edited by hand")

        page.get_by_role("button", name="Add instructions").click()
        page.get_by_label("Edit: Instructions").fill("Be brief.")
        keep(busy, page)
        expect(shown(page)).to_have_count(5)
        expect(shown(page).first).to_contain_text("Be brief.")
        expect(page.get_by_role("button", name="Add instructions")).to_have_count(0)

        edit(page, shown(page).first, "Instructions", "Be long.")
        page.get_by_label("Edit: Instructions").press("Control+Enter")
        expect(shown(page).first).to_contain_text("Be long.")
        expect(shown(page)).to_have_count(5)
        edit(page, shown(page).first, "Instructions", "")
        keep(busy, page)
        expect(shown(page)).to_have_count(4)
        expect(shown(page).first).to_contain_text("First question, corrected")


def test_every_word_that_is_shown_is_found_in_its_source(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url) as page:
        busy.open(page, "Q", MARKED)
        expect(page.locator("article math")).to_have_count(1)
        found = page.evaluate(_PLACES, MARKED)
        words = [word for word, _, _ in found]
        assert {
            "Alpha",
            "zeta_eta",
            "iota",
            "omicron",
            "pi",
            "rho",
            "silon",
            "chi",
            "psi",
            "один",
            "пять",
            "last",
            "end",
        } <= set(words)
        for word, place, _ in found:
            assert word == place
        begins = [begin for _, _, begin in found]
        assert begins == sorted(begins)


def chosen(page: Page) -> Locator:
    return page.get_by_role("slider", name="Word")


def choose(page: Page, *keys: str) -> None:
    """Choose a word of the reply that has the focus, by keys."""
    expect(shown(page).last).to_be_focused()
    page.keyboard.press("w")
    expect(chosen(page)).to_be_focused()
    for key in keys:
        page.keyboard.press(key)


def test_a_reply_goes_on_from_any_word_by_keys_alone(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url, viewport=WIDE) as page:
        busy.dictate("The 🌊 **river** is long and wide.")
        say(page, "Tell")
        expect(shown(page).last).to_contain_text("The 🌊 river is long and wide.")
        shown(page).last.focus()
        choose(page)
        for key, word in (
            ("End", "wide"),
            ("Home", "The"),
            ("ArrowRight", "river"),
            ("ArrowLeft", "The"),
            ("ArrowRight", "river"),
        ):
            page.keyboard.press(key)
            expect(chosen(page)).to_have_attribute("aria-valuetext", word)
        fits(page)
        busy.dictate("** flows north.")
        page.keyboard.press("g")
        expect(shown(page).last).to_contain_text("The 🌊 river flows north.")
        expect(shown(page).last).to_contain_text("2 / 2")
        assert busy.leaf(page)["text"] == "The 🌊 **river** flows north."

        choose(page)
        page.keyboard.press("w")
        field = page.get_by_label("Write on from here")
        expect(field).to_be_focused()
        page.keyboard.type("lake")
        busy.dictate(" is small.")
        page.keyboard.press("Control+Enter")
        expect(shown(page).last).to_contain_text("The lake is small.")
        choose(page, "ArrowRight")
        page.keyboard.press("b")
        expect(page.locator(".branching")).to_contain_text("“The lake”")
        busy.dictate("Why not.")
        say(page, "Why?")
        expect(shown(page).last).to_contain_text("Why not.")
        expect(page.locator("article.stopped .markdown")).to_have_text("The lake")


def test_a_reply_goes_on_with_another_word_by_one_key(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url, viewport=WIDE) as page:
        busy.open(page, "Tell", "The 🌊 **river** flows north.")
        shown(page).last.focus()
        choose(page, "End", "a")
        choices = page.get_by_role("list", name="Instead of “north”").get_by_role("button")
        expect(choices).to_have_count(10)
        expect(choices.first).to_be_focused()
        fits(page)
        words = [choice.locator(".token").inner_text() if choice.is_enabled() else "" for choice in choices.all()]
        number = next(number for number, word in enumerate(words, 1) if word.strip("␣⏎"))
        page.keyboard.press("Escape")
        expect(chosen(page)).to_be_focused()
        page.keyboard.press("a")
        expect(choices.first).to_be_focused()
        busy.dictate(" then.")
        page.keyboard.press(str(number))
        expect(shown(page).last).to_contain_text("2 / 2")
        told = busy.leaf(page)
        appended = told["details"]["appended"]
        assert appended.replace(" ", "␣").replace("\n", "⏎") == words[number - 1]
        assert told["text"].startswith("The 🌊 **river** flows" + appended)


def test_a_reply_goes_on_from_a_word_that_is_tapped(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url, viewport=NARROW, has_touch=True, is_mobile=True) as page:
        busy.open(page, "Tell", "The river is long and wide.")
        shown(page).last.get_by_role("button", name="Other actions").tap()
        page.get_by_role("button", name="Choose a word").tap()
        expect(chosen(page)).to_have_attribute("aria-valuetext", "The")
        box = page.evaluate("""() => {
          const range = document.createRange();
          const node = document.querySelector("article.assistant .markdown p").firstChild;
          range.setStart(node, node.data.indexOf("long"));
          range.setEnd(node, node.data.indexOf("long") + 4);
          const { left, top, width, height } = range.getBoundingClientRect();
          return [left + width / 2, top + height / 2];
        }""")
        page.touchscreen.tap(*box)
        expect(chosen(page)).to_have_attribute("aria-valuetext", "long")
        page.get_by_role("button", name="Previous word").tap()
        expect(chosen(page)).to_have_attribute("aria-valuetext", "is")
        fits(page)
        boxes = [one.bounding_box() for one in page.locator(".picker .choices button").all()]
        assert all(box and box["height"] >= 44 and box["x"] + box["width"] <= 360 for box in boxes)
        page.get_by_role("button", name="Other words").tap()
        expect(page.locator(".alternatives button")).to_have_count(10)
        fits(page)
        page.get_by_role("button", name="Close").tap()
        expect(page.locator(".picker")).to_have_count(0)
        shown(page).last.get_by_role("button", name="Other actions").tap()
        page.get_by_role("button", name="Choose a word").tap()
        busy.dictate(" goes.")
        page.get_by_role("button", name="Next word").tap()
        page.get_by_role("button", name="Go on from here").tap()
        expect(shown(page).last).to_contain_text("The river goes.")


def test_a_reply_goes_on_from_what_is_selected_while_it_is_written(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url, viewport=WIDE) as page:
        busy.dictate("First of all " + "word " * 100)
        busy.runner.gate.close_after(20)
        say(page, "Go on and on")
        running = page.locator("article.running")
        expect(running).to_contain_text("word word")
        running.locator("p", has_text="First").dblclick(position={"x": 12, "y": 10})
        expect(chosen(page)).to_have_attribute("aria-valuetext", "First")
        written = len(running.inner_text())
        busy.runner.gate.open()
        busy.runner.gate.close_after(20)
        page.wait_for_function(
            "(n) => document.querySelector('article.running').innerText.length > n + 60", arg=written
        )
        assert page.evaluate("getSelection().toString()") == "First"
        expect(chosen(page)).to_have_attribute("aria-valuetext", "First")
        page.keyboard.press("Escape")
        expect(page.locator(".picker")).to_have_count(0)
        running.locator("p", has_text="First").dblclick(position={"x": 12, "y": 10})
        page.get_by_role("button", name="Go on from here").click()
        expect(page.locator("article").last).to_contain_text("2 / 2")
        assert busy.leaf(page)["text"].startswith("First")
        page.locator("article").last.get_by_role("button", name="Stop").click()
        busy.runner.gate.open()
        page.locator("article.assistant").last.get_by_role("button", name="Earlier version").click()
        expect(shown(page).last).to_contain_text("First of all word")


def test_a_branch_that_nears_the_end_of_the_room_is_cut_from_the_top(
    default_model: str, tmp_path: Any, browser: Browser
) -> None:
    site = Site(default_model, tmp_path, max_model_len=360)
    try:
        with open_page(browser, site.url, viewport=NARROW) as page:
            for number in ("One", "Two", "Three"):
                converse(site, page, (number + " words of a question" * 23, "An answer."))
            page.get_by_role("button", name="Make room").click()
            dialog = page.get_by_role("dialog", name="Leave out the beginning")
            expect(dialog.get_by_label("The branch begins with")).to_have_value(re.compile("msg_"))
            expect(dialog.locator(".price")).to_have_text(
                re.compile(r"The next reply reads \d+ tokens; it is not known here how many of them are cached\.")
            )
            before = dialog.locator(".price").inner_text()
            dialog.get_by_label("The branch begins with").select_option(index=0)
            expect(dialog.locator(".price")).not_to_have_text(before)
            fits(page)
            dialog.get_by_role("button", name="Make this branch").click()
            expect(shown(page)).to_have_count(4)
            expect(shown(page).first).to_contain_text("Two words")
            expect(shown(page).first).to_contain_text("2 / 2")
            expect(page.get_by_role("button", name="Make room")).to_have_count(0)
            converse(site, page, ("And then?", "It goes on."))
    finally:
        site.close()


_MOVED = """() => {
  window.durations = [];
  const real = Element.prototype.animate;
  Element.prototype.animate = function (frames, duration) {
    window.durations.push(duration);
    return real.call(this, frames, duration);
  };
}"""


_TURN_AT_ONCE = """async (reply) => {
  reply.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true, cancelable: true }));
  await new Promise((done) => setTimeout(done));
  return !reply.isConnected && document.activeElement.matches("article");
}"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_another_version_fades_in_where_the_one_before_stood(busy: Busy, browser: Browser, motion: str) -> None:
    with open_page(browser, busy.url, viewport={"width": 1100, "height": 420}, reduced_motion=motion) as page:
        converse(busy, page, *THREE[:2], ("Third question", "A long answer.\n\n" * 12))
        busy.dictate("Short.")
        shown(page).last.get_by_role("button", name="Regenerate").click()
        expect(shown(page).last).to_contain_text("Short.")
        shown(page).last.get_by_role("button", name="Earlier version").click()
        expect(shown(page).last).to_contain_text("1 / 2")
        page.evaluate(_MOVED)
        reply = shown(page).last
        for key, place in (("ArrowRight", "2 / 2"), ("ArrowLeft", "1 / 2"), ("ArrowRight", "2 / 2")):
            reply.focus()
            top = reply.bounding_box()
            page.keyboard.press(key)
            expect(reply).to_contain_text(place)
            expect(reply).to_be_focused()
            now = reply.bounding_box()
            assert top is not None
            assert now is not None
            assert abs(now["y"] - top["y"]) <= 1
        if motion == "reduce":
            assert page.evaluate("window.durations") == []
        else:
            assert set(page.evaluate("window.durations")) == {120}
        assert reply.evaluate(_TURN_AT_ONCE)
        expect(reply).to_contain_text("1 / 2")
        converse(busy, page, ("And on", "It goes."))
        expect(shown(page).last).to_be_in_viewport()


def test_a_reply_that_is_held_is_no_reason_to_lose_what_is_written(busy: Busy, browser: Browser) -> None:
    with open_page(browser, busy.url, viewport=WIDE) as page:
        converse(busy, page, THREE[0])
        hold_in_a_reply(busy, page)
        edit(page, shown(page).first, "You", "Another question")
        expect(page.locator(".price")).to_have_text(
            "A reply of this branch is still being written: stop it, or wait for its end."
        )
        page.get_by_role("button", name="Save and keep what follows").click()
        expect(page.get_by_role("alert")).to_contain_text("still being written")
        expect(page.get_by_label("Edit: You")).to_have_value("Another question")
        busy.runner.gate.open()
        expect(page.locator(".price")).to_have_text(PRICE)
        page.get_by_role("button", name="Save and keep what follows").click()
        expect(shown(page).first).to_contain_text("Another question")
        expect(shown(page)).to_have_count(4)
