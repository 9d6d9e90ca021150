"""How a text reads on the chat page: formulas, tables, code, folds, notes, directions, paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import open_page
from chat_site import Site, converse, say, shown
from playwright.sync_api import Browser, Locator, Page, expect

from radixkv.gateway.pages.pages import PAGES

SIZES = [{"width": 360, "height": 740}, {"width": 768, "height": 1024}, {"width": 1280, "height": 800}]

TABLE = "\n".join(
    "|" + "|".join(cells) + "|"
    for cells in ([f"column {n}" for n in range(14)], ["---"] * 14, [f"value {n}" for n in range(14)])
)
CODE = f"```python\nx = 1  # {'a long line ' * 30}\n```"
FORMULA = r"\[ \sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6} \]"
EVERYTHING = f"""### Third level first

Inline $a^2 + b^2 = c^2$ and \\(x\\).

{FORMULA}

# First level

{TABLE}

{CODE}

- [x] done
- [ ] to do

<details>
<summary>More of it</summary>

Folded **text**

</details>

A claim[^1] and *another*[^2].

> quoted

[^1]: The first note.
[^2]: The second note.
"""


@pytest.fixture(scope="module")
def site(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(default_model, tmp_path_factory.mktemp("site"))
    yield site
    site.close()


def read(site: Site, page: Page, *texts: str) -> Locator:
    """Show a conversation whose replies are the texts; the last one's Markdown."""
    messages = [each for text in texts for each in ({"role": "user", "text": "Q"}, {"role": "assistant", "text": text})]
    made = httpx.post(f"{site.url}v1/radixkv/conversations", json={"messages": messages}, timeout=60).json()
    page.goto(f"{site.url}#{made['id']}")
    expect(shown(page)).to_have_count(2 * len(texts))
    return shown(page).last.locator(".markdown")


def check_thread(page: Page) -> None:
    """Axe finds nothing at all in the text."""
    found = Axe().run(page, context=".thread").response["violations"]
    assert not [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def scrolls(part: Locator) -> None:
    """It is wider than its place and scrolls by keys."""
    assert part.evaluate("part => part.scrollWidth > part.clientWidth")
    expect(part).to_have_attribute("tabindex", "0")
    part.focus()
    part.press("ArrowRight")
    part.page.wait_for_function("part => part.scrollLeft > 0", arg=part.element_handle())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['width']} px")
def test_everything_is_accessible_and_fits(site: Site, browser: Browser, size: dict[str, int], scheme: str) -> None:
    with open_page(browser, site.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as page:
        text = read(site, page, EVERYTHING)
        expect(text.locator("math")).to_have_count(3)
        check_thread(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        for part in (text.locator(".wide"), text.locator("pre")):
            scrolls(part)
        heights = text.locator("th").evaluate_all("cells => cells.map(cell => cell.clientHeight)")
        assert max(heights) < 80, "letters stand below each other"
        text.get_by_text("More of it").click()
        expect(text.get_by_text("Folded")).to_be_visible()
        check_thread(page)


def test_a_wide_table_scrolls_in_a_comparison_too(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url, viewport=SIZES[0]) as page:
        read(site, page, TABLE)
        site.dictate("Another.")
        shown(page).last.get_by_role("button", name="Regenerate").click()
        expect(shown(page).last).to_contain_text("Another.")
        shown(page).last.get_by_label("Other actions").click()
        page.get_by_role("button", name="Compare all versions").click()
        scrolls(page.locator(".column .wide"))
        assert page.locator(".column th").first.evaluate("cell => cell.clientHeight") < 80


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        (r"$x$ and $y_1$, \(z\) and $$w$$", 4),
        ("$$\na = b\n+ c\n= d\n$$", 1),
        ("before\n\\[\n\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}\n\\]\nbehind", 1),
        (r"- in a list: $x$" + "\n\n  $$\n  y\n  $$", 2),
        ("> $$x$$", 1),
        ("| $a$ | b |\n|---|---|\n| $c$ | d |", 2),
        ("$f'(x) = \\mathscr{L}$", 1),
        ("It costs $5 and $10, or US$5 to US$10.", 0),
        ("$20 for the first, 30$ for the next", 0),
        ("`$x$` and `$` and $y` and `z$", 0),
        ("```\n$x$\n$$\ny\n$$\n```", 0),
        ("    $x$", 0),
        (r"\$x\$ and \\(y\\)", 0),
        ("$$\nnever closed\n\nand more", 0),
        (r"\(never closed and $neither", 0),
    ],
)
def test_formulas_are_told_from_prices_and_code(site: Site, page: Page, text: str, formulas: int) -> None:
    said = read(site, page, text)
    expect(said.locator("math")).to_have_count(formulas)
    expect(said.locator(".math")).to_have_count(formulas)


def test_what_is_no_formula_stands_there_as_it_was_written(site: Site, page: Page) -> None:
    source = r"$\frac{1$ and \[ \nothing{x} \]"
    said = read(site, page, rf"$x$ then {source}")
    expect(said.locator("math")).to_have_count(1)
    expect(said).to_contain_text(source)
    said = read(
        site, page, r"$\href{javascript:alert(1)}{x}$ $\label{composer-text} y \ref{z}$ $\rule{9999em}{9999em}$"
    )
    expect(said.locator("math")).to_have_count(2)
    assert said.locator("math [id], math [href]").count() == 0
    assert said.evaluate("said => said.scrollHeight") < 1000


def test_math_is_loaded_for_the_first_formula_only(site: Site, page: Page) -> None:
    read(site, page, "Plain text")
    loaded = "() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('temml')).length"
    assert page.evaluate(loaded) == 0
    expect(read(site, page, "$x$").locator("math")).to_be_visible()
    assert page.evaluate(loaded) == 2


def test_without_what_shows_formulas_their_sources_stand_there(site: Site, page: Page) -> None:
    page.route("**/temml.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    said = read(site, page, "Source $x^2$ stays")
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').some(({ name }) => name.endsWith('temml.js'))"
    )
    expect(said).to_have_text("Source $x^2$ stays")
    expect(said.locator("math")).to_have_count(0)


def test_a_formula_is_text_while_it_is_written(site: Site, page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
    begin, end = r"See $x^2 + y", r"$ there."
    site.dictate(begin + end)
    site.runner.gate.close_after(len(site.text.encode(begin, special=False)))
    say(page, "Write one")
    growing = page.locator("article.running .markdown")
    expect(growing).to_contain_text("See $x^2")
    assert growing.locator(".math").count() == 0
    site.runner.gate.open()
    expect(shown(page).last.locator("math")).to_have_count(1)
    expect(shown(page).last.locator(".markdown")).not_to_contain_text("$")


def test_text_from_right_to_left(site: Site, page: Page) -> None:
    arabic = "مرحبا بالعالم"
    said = read(
        site,
        page,
        f"- {arabic}\n\n> {arabic}\n\n| {arabic} | b |\n|---|---|\n| {arabic} | {arabic} |\n\n$x$ `y` {arabic}\n\n- left",
    )
    directions = said.locator("ul, blockquote, table, :scope > div > p").evaluate_all(
        "parts => parts.map(part => getComputedStyle(part).direction)"
    )
    assert directions == ["rtl"] * 4 + ["ltr"]
    bar = said.locator("blockquote").evaluate("quote => getComputedStyle(quote).borderRightWidth")
    assert bar == "3px"
    cells = said.locator("th").evaluate_all("cells => cells.map(cell => cell.getBoundingClientRect().x)")
    assert cells[0] > cells[1]
    assert (
        read(site, page, f"{arabic}\n\n```\nx = 1\n```")
        .locator("pre")
        .evaluate("pre => getComputedStyle(pre).direction")
        == "ltr"
    )


def test_code_is_copied_wrapped_and_saved(site: Site, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    source = "x = 1\n" + "y = 'long' " * 40 + "\n"
    said = read(site, page, f"```python\n{source}```\n\n```\nplain\n```")
    said.get_by_role("button", name="Copy").first.click()
    expect(said.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == source
    for index, name in enumerate(("code.py", "code.txt")):
        with page.expect_download() as saving:
            said.get_by_role("button", name="Download").nth(index).click()
        assert saving.value.suggested_filename == name
    wrap = said.get_by_role("button", name="Wrap").first
    expect(wrap).to_have_attribute("aria-pressed", "false")
    wrap.click()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    assert said.locator("pre").first.evaluate("pre => pre.scrollWidth <= pre.clientWidth")
    expect(said.locator("pre").first).not_to_have_attribute("tabindex", "0")


def test_tasks_and_notes(site: Site, page: Page) -> None:
    text = "- [x] one\n- [ ] two\n- [y] three\n\nA claim[^a] and 10^[3].\n\n[^a]: The note."
    said = read(site, page, text, text)
    expect(said.get_by_role("checkbox")).to_have_count(2)
    expect(said.get_by_role("checkbox", name="done", exact=True)).to_be_checked()
    expect(said.get_by_role("checkbox", name="to do")).to_be_disabled()
    ids = page.locator("[id]").evaluate_all("parts => parts.map(part => part.id)")
    assert len(ids) == len(set(ids))
    assert sum(each.startswith("footnote") for each in ids) == 4
    before = page.url
    said.get_by_role("link", name="[1]").click()
    expect(said.locator(".footnote-item")).to_be_focused()
    said.get_by_role("link", name="Back to the text").click()
    expect(said.get_by_role("link", name="[1]")).to_be_focused()
    assert page.url == before
    assert said.locator("sup").count() == 1, "an exponent is no note"


def test_folds_open_and_hold_nothing_that_runs(site: Site, page: Page) -> None:
    evil = "<details open ontoggle=x>\n<img src=x onerror=x>\n</details>"
    text = (
        "<think>\nLet me see.\n\n```\n</think>\n```\n</think>\n\nThe answer.\n\n"
        "<details><summary>A <b>title</b></summary>\n\n- a\n\n"
        "<details>\n<summary>Inner</summary>Deep</details>\n\nend</details>\n\n"
        f"After.\n\n{evil}"
    )
    said = read(site, page, text)
    expect(said.locator("details")).to_have_count(3)
    expect(said.get_by_text("Let me see.")).to_be_hidden()
    said.get_by_text("Thinking", exact=True).click()
    expect(said.get_by_text("Let me see.")).to_be_visible()
    expect(said.get_by_text("The answer.")).to_be_visible()
    said.get_by_text("A title", exact=True).click()
    expect(said.get_by_text("end", exact=True)).to_be_visible()
    expect(said.get_by_text("Deep")).to_be_hidden()
    said.get_by_text("Inner", exact=True).click()
    expect(said.get_by_text("Deep")).to_be_visible()
    expect(said).to_contain_text("ontoggle=x")
    assert said.locator("img, [ontoggle], [onerror]").count() == 0
    check_thread(page)


def test_links_open_elsewhere_and_lists_begin_at_their_number(site: Site, page: Page) -> None:
    said = read(site, page, "3. [a link](https://example.org) and [another](javascript:alert(1))")
    expect(said.get_by_role("link")).to_have_count(1)
    expect(said.get_by_role("link")).to_have_attribute("target", "_blank")
    expect(said.get_by_role("link")).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(said.locator("ol")).to_have_attribute("start", "3")


def test_headings_skip_no_level(site: Site, page: Page) -> None:
    said = read(site, page, "### a\n\n# b\n\n#### c\n\n## d\n\n> ## e\n\n###### f")
    assert said.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(each => each.tagName).join(' ')") == (
        "H3 H3 H4 H4 H4 H5"
    )
    check_thread(page)


def test_what_is_open_stays_open_while_the_text_grows(site: Site, page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
    begin = "<details>\n<summary>Steps</summary>\n\nFirst $x$ step"
    site.dictate(begin + " and the rest of it\n\n</details>")
    site.runner.gate.close_after(len(site.text.encode(begin, special=False)))
    say(page, "Fold it")
    growing = page.locator("article .markdown").last
    growing.get_by_text("Steps").click()
    expect(growing.locator("math")).to_be_visible()
    growing.get_by_text("First").evaluate(
        "step => { getSelection().selectAllChildren(step); window.formula = step.querySelector('math'); }"
    )
    site.runner.gate.open()
    expect(growing.get_by_text("and the rest of it")).to_be_visible()
    assert page.evaluate("getSelection().toString()").startswith("First")
    assert page.evaluate("window.formula.isConnected")


def test_the_words_that_two_texts_differ_in(page: Page) -> None:
    marked = page.evaluate(
        """async (texts) => {
          const { difference } = await import("/static/chat/text/difference.js");
          const sign = ({ value, added, removed }) => (added ? `+[${value}]` : removed ? `-[${value}]` : value);
          return Promise.all(texts.map(async ([before, after]) => (await difference(before, after)).map(sign).join("")));
        }""",
        [["The red fox runs.", "The brown fox runs."], ["我喜欢猫。", "我喜欢狗。"], ["same", "same"]],
    )
    assert marked == ["The -[red]+[brown] fox runs.", "我喜欢-[猫]+[狗]。", "same"]


def test_a_branch_on_paper(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url, viewport=SIZES[2], color_scheme="dark") as page:
        text = read(site, page, *["A long text. " * 200] * 8, EVERYTHING)
        expect(text.locator("math")).to_have_count(3)
        page.emulate_media(media="print")
        expect(page.locator("button:visible, aside:visible, textarea:visible, header.top:visible")).to_have_count(0)
        expect(page.locator("article:visible")).to_have_count(18)
        colours = "part => [getComputedStyle(part).color, getComputedStyle(document.body).backgroundColor]"
        assert text.locator("p").first.evaluate(colours) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
        clipped = """parts => parts.filter((part) => {
          const { overflowX, overflowY } = getComputedStyle(part);
          const isWide = overflowX !== "visible" && part.scrollWidth > part.clientWidth;
          return isWide || (overflowY !== "visible" && part.scrollHeight > part.clientHeight);
        }).map((part) => part.outerHTML.slice(0, 80))"""
        assert page.locator("main, main *:not(math *):visible").evaluate_all(clipped) == []
        assert page.pdf().count(b"/Type /Page\n") > 3


def test_a_branch_as_one_file_reads_as_it_does_here(site: Site, browser: Browser, tmp_path: Path) -> None:
    with open_page(browser, site.url) as page:
        read(site, page, "<script>window.hacked = 1</script>", EVERYTHING)
        page.get_by_label("More").click()
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save this branch as HTML").click()
        assert saving.value.suggested_filename == "Q.html"
        saving.value.save_as(tmp_path / "branch.html")
    with open_page(browser, f"file://{tmp_path / 'branch.html'}", viewport=SIZES[0]) as page:
        expect(page.get_by_text("UTC")).to_have_count(4)
        expect(page.locator("math")).to_have_count(3)
        expect(page.locator(".hljs-comment")).to_have_count(1)
        expect(page.locator("button, script, textarea")).to_have_count(0)
        assert page.evaluate("[window.hacked, document.documentElement.scrollWidth]") == [None, 360]
        assert not Axe().run(page).response["violations"]
        assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_the_first_load_stays_small(site: Site, browser: Browser) -> None:
    with open_page(browser, site.url) as page:
        converse(site, page, ("A question", "An answer."))
        loaded = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/static/'))"
        sizes = page.evaluate(f"{loaded}.map(({{ encodedBodySize }}) => encodedBodySize)")
        assert len(sizes) > 20
        assert sum(sizes) < 350_000


def test_every_module_of_a_page_is_asked_for_at_once(site: Site, browser: Browser) -> None:
    loaded = "performance.getEntriesByType('resource').map(({ name }) => name).filter((name) => name.endsWith('.js'))"
    linked = "[...document.querySelectorAll('[rel=modulepreload], [type=module]')].map(({ href, src }) => href ?? src)"
    for path in PAGES:
        with open_page(browser, site.url + path[1:]) as page:
            assert set(page.evaluate(loaded)) == set(page.evaluate(linked))
