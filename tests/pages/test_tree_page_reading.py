"""How the tree page reads in Chromium: what left and why, who says what, a long prompt, and the way from the chat and back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser import open_page
from chat_stack import Watched, gibberish_engine
from playwright.sync_api import Browser, Page, expect
from talk import Talk
from tree_page import ask, colour, named_colour, number_of_nodes, walk_to
from tree_stack import TreeStack, busy_stack, store, tree_stack

from radixkv.worker.generations.text import ChatText

QUESTION = "Where does the Rhine begin, and through which towns does it flow on its way to the sea?"
ANSWER = "It begins in the Swiss Alps, in Graubünden, and flows through Chur, Basel, Strasbourg, Mainz and Rotterdam."
OTHER = "Near the Oberalp pass."
SPY = """() => {
  const { fillText } = CanvasRenderingContext2D.prototype;
  window.drawn = new Set();
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.drawn.add(text);
    return fillText.call(this, text, ...rest);
  };
}"""


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Watched, ChatText]]:
    with gibberish_engine(default_model) as (engine, _, text):
        yield engine, text


@pytest.fixture
def stack(worker: tuple[Watched, ChatText]) -> Iterator[TreeStack]:
    with tree_stack(*worker) as stack:
        store(stack.holder, stack.text.prompt_ids(chat(QUESTION, ANSWER)))
        store(stack.holder, stack.text.prompt_ids(chat(QUESTION, OTHER)))
        yield stack


@pytest.fixture
def page(browser: Browser, stack: TreeStack) -> Iterator[Page]:
    with open_page(browser, stack.url) as page:
        number_of_nodes(page, len(stack.holder.dump()))
        yield page


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def figure_of_evictions(page: Page, words: str) -> None:
    expect(page.locator("section[aria-labelledby=card-evictions] .figure")).to_contain_text(words)


# -- what left


def test_what_ends_is_told_in_grey_and_counts_as_no_eviction(stack: TreeStack, page: Page) -> None:
    before = len(stack.holder.dump())
    number_of_nodes(page, before)
    tokens = stack.text.encode("A history that nobody keeps, of several blocks.", special=False)
    seq = stack.holder.acquire(tokens)
    stack.holder.insert(seq.seq_id, len(tokens))
    number_of_nodes(page, len(stack.holder.dump()))
    stack.holder.release(seq.seq_id, keep=False)
    expect(page.locator(".left")).to_contain_text(re.compile(r"nodes? ended"))
    assert colour(page, ".left") == named_colour(page, "--text-soft")
    figure_of_evictions(page, "0 blocks")
    number_of_nodes(page, before)


def test_eviction_for_room_alone_is_an_alarm(stack: TreeStack, page: Page) -> None:
    number_of_nodes(page, len(stack.holder.dump()))
    num_blocks = stack.holder.stats().num_free_blocks + 2
    seq = stack.holder.acquire(range(1000, 1000 + 4 * num_blocks))
    expect(page.locator(".left")).to_contain_text("2 blocks evicted for room")
    assert colour(page, ".left") == named_colour(page, "--danger")
    figure_of_evictions(page, "2 blocks")
    stack.holder.release(seq.seq_id, keep=False)


def test_a_hit_rate_with_gaps_is_one_line(page: Page) -> None:
    path = page.evaluate(
        """async () => {
          const { GaugeCards, Gauges } = await import('/static/tree/gauges.js');
          const { html, render } = await import('/static/vendor/htm-preact.js');
          const gauges = new Gauges();
          const fields = ['time_s', 'num_blocks', 'num_free_blocks', 'num_evictable_blocks', 'num_pinned_blocks', 'block_size',
            'num_hit_tokens', 'num_query_tokens', 'num_evicted_blocks', 'prefill_tokens_per_s'];
          const rows = [[0, 0, 0], [5, 4, 10], [15, 4, 10], [25, 9, 20], [35, 9, 20], [45, 9, 20], [55, 20, 40]];
          gauges.add({ fields, points: rows.map(([s, hit, asked]) => [s, 9, 9, 0, 0, 4, hit, asked, 0, 1]) });
          const place = document.createElement('div');
          render(html`<${GaugeCards} gauges=${gauges} />`, place);
          return place.querySelector('.line').getAttribute('d');
        }"""
    )
    assert path.count("M") == 1
    assert path.count("L") == 2


def test_one_long_prompt_leaves_the_rest_room(stack: TreeStack, page: Page) -> None:
    stack.store("the river begins in the mountains and ends in the sea " * 60)
    number_of_nodes(page, len(stack.holder.dump()))
    wide = ask(page, "drawing.width")
    longest = ask(page, "tree.maxDepth")
    deepest = ask(
        page, "Math.max(...tree.order.filter((node) => node.position + node.tokens < 60).map((n) => n.below.end))"
    )
    assert deepest * 7 < longest
    assert ask(page, f"drawing.xOf({deepest})") > 0.3 * wide
    assert ask(page, f"drawing.xOf({longest})") <= wide


# -- who says what


@pytest.mark.parametrize("width", [360, 1280])
def test_labels_have_no_template_in_them_and_no_break_within_a_word(
    browser: Browser, stack: TreeStack, width: int
) -> None:
    words = {word.strip(".,?") for word in f"{QUESTION} {ANSWER} Near the Oberalp pass.".split()}
    words |= {"You", "are", "a", "helpful", "AI", "assistant", "named", "SmolLM", "trained", "by", "Hugging", "Face"}
    with open_page(browser, stack.url, viewport={"width": width, "height": 800}) as page:
        page.evaluate(SPY)
        number_of_nodes(page, len(stack.holder.dump()))
        page.wait_for_function("() => [...window.drawn].some((text) => text.includes('helpful'))")
        for _ in range(3):
            page.get_by_role("button", name="Zoom in").click()
        drawn = {text.strip().strip(".,?") for text in page.evaluate("() => [...window.drawn]")}
    assert not any("im_" in text or "<|" in text for text in drawn)
    assert {"user", "assistant"} & drawn or {"U", "A"} & drawn
    said = {
        text for text in drawn if len(text) > 4 and text.isalpha() and text not in ("default", "system", "assistant")
    }
    assert len(said & words) > 5
    assert not said - words, "every word is drawn whole"


def test_the_list_and_the_words_for_readers_name_the_roles(page: Page) -> None:
    walk_to(page, "ArrowRight")
    expect(page.locator("#where")).to_contain_text("system: You are a helpful AI assistant")
    expect(page.locator("#where")).to_contain_text("user: Where does")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#where")).to_contain_text(re.compile("assistant: (It begins in the Swiss Alps|Near the Ober)"))
    expect(page.locator("#where")).not_to_contain_text("im_start")
    page.get_by_role("button", name="List").click()
    page.get_by_role("button", name=re.compile("Branches of the node at 0")).click()
    expect(page.locator(".list .role.user").first).to_have_text("user")


# -- from the chat and back


def test_a_branch_of_the_chat_is_found_in_the_tree_and_the_tree_leads_back(
    browser: Browser, default_model: str
) -> None:
    with busy_stack(default_model) as (server, _, runner), Talk(server.url) as talk:
        conversation = talk.begin()
        runner.dictate(ANSWER, OTHER)
        asked, reply = talk.turn(conversation, QUESTION, max_tokens=40)
        again = talk.call("POST", f"/{conversation}/messages/{asked}/replies", {"max_tokens": 40})["messages"][0]
        talk.ended(conversation, again["id"])
        site = f"http://{server.address}"
        with open_page(browser, f"{site}/#{conversation}/{reply['id']}") as page:
            page.get_by_label("More").first.click()
            page.get_by_text("Show in the tree").click()
            link = page.locator(".in-chat a")
            expect(link).to_have_attribute("href", f"/#{conversation}/{reply['id']}")
            first = page.locator("#panel-title").inner_text()
            page.evaluate("(hash) => (location.hash = hash)", f"#{conversation}/{again['id']}")
            expect(link).to_have_attribute("href", f"/#{conversation}/{again['id']}")
            assert page.locator(".text.own").inner_text().strip()
            assert first
            link.click()
            expect(page.locator("article")).to_have_count(2)
            assert page.url.endswith(f"#{conversation}/{again['id']}")


def test_a_branch_that_is_not_cached_is_said_to_be_none(browser: Browser, default_model: str) -> None:
    with busy_stack(default_model) as (server, _, _), Talk(server.url) as talk:
        body = {"role": "user", "text": QUESTION}
        conversation = talk.begin()
        (message,) = talk.call("POST", f"/{conversation}/messages", body)["messages"]
        with open_page(browser, f"http://{server.address}/tree#{conversation}/{message['id']}") as page:
            expect(page.locator(".said")).to_have_text("Nothing of this branch is cached now.")
