"""A text that grows on the chat page: shown as it is whole, wherever it was cut, and read again at its end only."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from browser import open_page
from chat_site import Site
from playwright.sync_api import Browser, Page

NUM_TEXTS = 150

PIECES = (
    "A paragraph\nthat goes on\n===\n",
    "- a list\n\n  with a paragraph\n- and more\n",
    "1. one\n2. two\n\n   - [x] done\n   - [ ] to do\n",
    "# A heading\n",
    "#### A deeper one\n",
    "###### The deepest one\ntext\n",
    "| a | b |\n|---|--:|\n| 1 | $2$ |\n",
    "> quoted\nand lazy\n",
    "```python\nx = 1\n\ny = 2\n```\n",
    "```\nnever closed\n\n$x$\n",
    "    indented\n\n    code\n",
    "---\n",
    "With [a link][far], **bold** text and `$code$`.\n",
    "A formula $x^2$ and \\(y\\), $$z$$ and \\[w\\].\n",
    "$$\na = b\n+ c\n= d\n# e\n> f\n- g\n$$\n",
    "\\[\na\n\\]\n",
    "$$\nnever closed\n- x\n# y\n",
    "\\[ never closed\n",
    "costs $5 and $10\n",
    "<details>\n<summary>Title</summary>\n\ninside\n\n## below\n\n</details>\n",
    "<details><summary>Never closed\n\ninside\n",
    "<think>\nhm\n\n```\n</think>\n```\n</think>\nthen\n",
    "</details>\n",
    "A note[^1] and one that is missing[^none].\n",
    "مرحبا $x$ `y`\n",
)
LAST = ("\n[far]: https://example.org/\n", "\n[^1]: The note.\n")

GROW = """async ([text, ends]) => {
  const { Blocks } = await import("/static/chat/text/blocks.js");
  const growing = new Blocks("n");
  for (const end of ends) growing.of(text.slice(0, end));
  return [growing.of(text), new Blocks("n").of(text)];
}"""
SHOW = """async ([text, ends]) => {
  const { html, render } = await import("/static/vendor/htm-preact.js");
  const { Markdown } = await import("/static/chat/text/markdown.js");
  const places = [0, 1].map(() => document.body.appendChild(document.createElement("div")));
  const show = (place, part) => render(html`<${Markdown} text=${part} />`, place);
  const turn = () => new Promise((done) => setTimeout(done));
  for (const end of ends) {
    show(places[0], text.slice(0, end));
    await turn();
  }
  show(places[0], text);
  show(places[1], text);
  await turn();
  while (!globalThis.temml && document.querySelector(".math")) await turn();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const found = places.map(({ innerHTML }) => innerHTML.replaceAll(/footnote(-ref)?-\\d+-/g, "footnote$1-"));
  for (const place of places) {
    render(null, place);
    place.remove();
  }
  return found;
}"""
READ_LAST = """async () => {
  const { Blocks } = await import("/static/chat/text/blocks.js");
  const part = (index) => `Paragraph ${index} ${"with **some** $x$ words ".repeat(5)}\\n\\n`;
  let text = Array.from({ length: 2000 }, (_, index) => part(index)).join("");
  const growing = new Blocks();
  growing.of(text);
  for (let index = 0; index < 5; index++) growing.of((text += part(index)));
  return [growing.numSettled, text.length];
}"""


@pytest.fixture(scope="module")
def page(default_model: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    site = Site(default_model, tmp_path_factory.mktemp("site"))
    with open_page(browser, site.url) as page:
        yield page
    site.close()


def text_by_chance(source: random.Random) -> str:
    pieces = source.choices(PIECES, k=source.randint(1, 9))
    if source.random() < 0.3:
        pieces.insert(source.randint(0, len(pieces)), source.choice(LAST))
    return "".join(piece + source.choice(["", "\n", "\n", "\n\n"]) for piece in pieces)


def cuts(source: random.Random, text: str) -> list[int]:
    return sorted(source.choices(range(len(text) + 1), k=source.choice([2, 10, 60])))


def test_a_text_that_grows_reads_as_it_does_whole(page: Page) -> None:
    every = "\n".join(PIECES)
    texts = [every, every + "".join(LAST)]
    source = random.Random(0)
    texts += [text_by_chance(source) for _ in range(NUM_TEXTS)]
    for index, text in enumerate(texts):
        ends = list(range(0, len(text), 3)) if index < 2 else cuts(source, text)
        grown, whole = page.evaluate(GROW, [text, ends])
        assert grown == whole, repr(text)


def test_a_text_that_grows_is_shown_as_it_is_whole(page: Page) -> None:
    source = random.Random(1)
    for _ in range(NUM_TEXTS):
        text = text_by_chance(source)
        grown, whole = page.evaluate(SHOW, [text, cuts(source, text)])
        assert grown == whole, repr(text)


def test_of_a_long_text_that_grows_only_the_end_is_read_again(page: Page) -> None:
    num_settled, length = page.evaluate(READ_LAST)
    assert 0.99 * length < num_settled < length
