"""The page on fragmentation in a real browser: what a visitor sees and does."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import WIDTHS, check_clean, open_page, phone
from chat_stack import Stack, chat_stack, gateway, gibberish_engine, keys_file
from playwright.sync_api import Browser, Page, expect

from radixkv.gateway.config import GatewayConfig


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture
def page(stack: Stack, browser: Browser) -> Iterator[Page]:
    """The page with its usual stream, at rest, since who wants calm is shown nothing that moves by itself."""
    with opened(stack, browser, reduced_motion="reduce") as page:
        yield page


def opened(stack: Stack, browser: Browser, **context: object) -> Any:
    return open_page(browser, f"http://{stack.server.address}/fragmentation", **context)


def settled(page: Page) -> None:
    expect(page.locator(".pool")).to_have_count(3)


# -- what a visitor does


def clock(page: Page) -> str:
    return page.locator(".clock").inner_text()


def test_it_begins_at_rest_plays_when_asked_pauses_and_goes_on(stack: Stack, browser: Browser) -> None:
    with opened(stack, browser) as page:
        settled(page)
        begun = clock(page)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert clock(page) == begun
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        page.wait_for_function("begun => document.querySelector('.clock').innerText !== begun", arg=begun)
        page.get_by_role("button", name="Pause").click()
        paused = clock(page)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert clock(page) == paused
        page.get_by_label("Speed").select_option("100")
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Again")).to_be_visible()
        expect(page.locator(".clock")).to_have_text(re.compile(r"^(.+) of \1$"))


def test_before_anything_moves_the_legend_and_all_counts_are_in_sight(stack: Stack, browser: Browser) -> None:
    with opened(stack, browser, viewport={"width": 1280, "height": 800}) as page:
        settled(page)
        for part in (".legend li", ".pool .key li", ".pool .crowd", ".pool canvas", "button.play"):
            boxes = [one.bounding_box() for one in page.locator(part).all()]
            assert boxes
            assert all(box and box["y"] >= 0 and box["y"] + box["height"] <= 800 for box in boxes), part
        expect(page.get_by_label("Pool", exact=True)).to_be_hidden()
        page.get_by_text("Conditions", exact=True).click()
        expect(page.get_by_label("Pool", exact=True)).to_be_visible()


def test_a_moment_at_rest_is_shown_first_in_which_there_is_most_to_see(page: Page) -> None:
    settled(page)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert not clock(page).startswith("0.0 s")
    page.wait_for_function(  # every pool shows several kinds of slots
        """() => [...document.querySelectorAll(".pool canvas")].every((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size > 3;
        })"""
    )


def outcome(page: Page) -> dict[str, list[float]]:
    rows = page.locator(".outcome tbody tr")
    found = {}
    for row in rows.all():
        cells = [cell.replace(",", "").rstrip("% s") for cell in row.locator("td").all_inner_texts()]
        found[row.locator("th").inner_text()] = [float(cell) for cell in cells]
    return found


def test_a_scene_tells_how_many_requests_a_card_serves_by_each_way(page: Page) -> None:
    settled(page)
    page.get_by_label("Requests", exact=True).select_option("scene")
    rows = page.locator(".scene tbody tr")
    expect(rows).to_have_count(3)
    told = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert told == [
        ["2.50 GiB", "0", "9", "16", "22.50 GiB"],
        ["1.25 GiB", "0", "19", "6", "23.75 GiB"],
        ["0.94 GiB", "0.31 GiB", "25", "0", "23.75 GiB"],
    ]
    expect(page.locator(".outcome:not(.scene) tbody tr")).to_have_count(3)
    page.get_by_label("Requests", exact=True).select_option("recorded")
    expect(rows).to_have_count(0)


def test_sharing_serves_more_with_the_same_memory(page: Page) -> None:
    settled(page)
    reserve, paged, sharing = outcome(page).values()
    assert reserve[0] < paged[0] < sharing[0]
    assert reserve[1] < sharing[1]
    assert sharing[0] > 100
    assert reserve[3] == paged[3] == 0 < sharing[3]


def slide(page: Page, label: str, key: str, times: int = 1) -> None:
    if page.locator("details.conditions:not([open])").count():
        page.get_by_text("Conditions", exact=True).click()
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    for _ in range(times):
        page.keyboard.press(key)


def test_larger_blocks_lose_more_and_without_branches_nothing_is_found(page: Page) -> None:
    settled(page)
    before = outcome(page)["Paged"][0]
    slide(page, "Block", "End")
    page.wait_for_function(
        "text => document.querySelector('.outcome tbody tr:nth-child(2) td').innerText !== text", arg=f"{before:.0f}"
    )
    assert outcome(page)["Paged"][0] < before
    slide(page, "Branches kept", "Home")
    expect(page.locator(".outcome tbody tr:nth-child(3) td:nth-of-type(4)")).to_have_text("0.0%")
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".outcome tbody tr:nth-child(2) td").first).to_have_text(f"{before:.0f}")


def test_everything_goes_by_keyboard(page: Page) -> None:
    settled(page)
    page.keyboard.press("Tab")
    for _ in range(40):
        if page.evaluate("() => document.activeElement.className") == "main play":
            break
        page.keyboard.press("Tab")
    else:
        pytest.fail("the button that plays cannot be reached")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator(".clock")).to_have_text(re.compile(r"^0\.0 s"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("slider", name="Moment")).to_have_value("1")


def test_a_request_can_be_followed(page: Page) -> None:
    settled(page)
    page.get_by_label("Follow request").fill("2")
    told = page.locator(".follow p")
    expect(told).to_contain_text("Request 2: a prompt of")
    expect(told).to_contain_text("reserve to the maximum:")
    page.get_by_role("button", name="Show all").click()
    expect(told).to_contain_text("Point at a slot")
    page.get_by_role("slider", name="Moment").fill("40")
    page.locator(".pool.reserve canvas").hover(position={"x": 4, "y": 4})
    expect(told).to_contain_text("a prompt of")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_at_any_width_and_nothing_scrolls_sideways(
    stack: Stack, browser: Browser, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with opened(stack, browser, color_scheme=scheme, viewport=size) as page:
        settled(page)
        check_clean(page)
        page.get_by_text("Conditions", exact=True).click()
        page.get_by_label("Follow request").fill("2")
        check_clean(page)
        page.get_by_label("Requests", exact=True).select_option("live")
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_role("button", name="Play").click()
        check_clean(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_phone_shows_all_of_it(stack: Stack, browser: Browser) -> None:
    with opened(stack, browser, viewport=phone) as page:
        settled(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= phone["width"]
        boxes = [canvas.bounding_box() for canvas in page.locator(".pool canvas").all()]
        assert all(box and box["width"] > 300 for box in boxes)


# -- other streams


def ask(url: str, text: str, key: str = "any") -> None:
    body = {"model": "gibberish", "messages": [{"role": "user", "content": text}], "max_tokens": 8, "n": 2}
    headers = {"Authorization": f"Bearer {key}"}
    httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()


def test_the_server_s_own_last_requests_are_played(default_model: str, browser: Browser) -> None:
    with chat_stack(default_model) as stack, opened(stack, browser, reduced_motion="reduce") as page:
        settled(page)
        page.get_by_label("Requests", exact=True).select_option("live")
        expect(page.get_by_role("alert")).to_contain_text("has answered no request of yours")
        expect(page.get_by_label("Requests", exact=True)).to_have_value("recorded")
        for text in ("where does the river begin?", "where does the river end?", "hello"):
            ask(stack.server.url, text)
        page.get_by_label("Requests", exact=True).select_option("live")
        expect(page.locator("#data")).to_contain_text("6 requests")
        expect(page.get_by_role("alert")).to_have_count(0)
        assert outcome(page)["Paged, prefixes shared"][3] > 20


def test_a_tenant_is_told_its_own_requests_and_no_text(default_model: str, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)
    with gibberish_engine(default_model) as (engine, _, _), gateway(engine, config) as server:
        ask(server.url, "a secret of the red", "red")
        url = f"{server.url}/radixkv/replay"
        assert httpx.get(url).status_code == 401
        blue = httpx.get(url, headers={"Authorization": "Bearer blue"}).json()
        assert blue["requests"] == []
        red = httpx.get(url, headers={"Authorization": "Bearer red"})
        first, second = red.json()["requests"]
        assert second["parent"] == 0
        assert second["shared_tokens"] == second["prompt_tokens"] == first["prompt_tokens"]
        assert (first["max_tokens"], first["arrival_s"], first["found_tokens"]) == (8, 0.0, 0)
        assert "secret" not in red.text


def test_a_file_of_mooncake_s_is_played(page: Page, tmp_path: Path) -> None:
    settled(page)
    rows = [
        {"timestamp": 200 * index, "input_length": 1024 + index, "output_length": 30, "hash_ids": [1, 2, 10 + index]}
        for index in range(12)
    ]
    path = tmp_path / "conversation_trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    page.locator("#file").set_input_files(path)
    expect(page.locator("#data")).to_contain_text("11 requests with")
    expect(page.locator("#data")).to_contain_text("10 begin as an earlier one does")
    expect(page.locator("#data")).not_to_contain_text("When radixkv served")
    assert outcome(page)["Paged, prefixes shared"][3] > 80


def test_mooncake_s_prefixes_are_read_as_in_python(page: Page) -> None:
    source = random.Random(4)
    rows = []
    paths: list[list[int]] = [[]]
    for index in range(60):
        path = source.choice(paths)[: source.randint(0, 5)] + [
            1000 * index + place for place in range(source.randint(1, 4))
        ]
        paths.append(path)
        rows.append({"timestamp": index * 100, "input_length": 512 * len(path), "output_length": 9, "hash_ids": path})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    told = page.evaluate(
        """async (text) => {
          const { readStream } = await import("/static/fragmentation/stream.js");
          return readStream("x", text).requests.map(({ prompt, generated, shared }) => [prompt, generated, shared]);
        }""",
        text,
    )
    from radixkv.simulate import shapes_of
    from radixkv.simulate.traces import _mooncake

    expected = shapes_of(_mooncake(Path("x"), rows))
    assert told == [[shape.prompt_tokens, shape.generated_tokens, shape.shared_tokens] for shape in expected]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no request"),
        ("nothing", "request 1: this is no JSON object"),
        ('{"arrival_s": 0}\n', "request 1: its prompt has no length"),
        (
            '{"arrival_s": 0, "prompt_tokens": 5, "generated_tokens": 1, "parent": 3, "shared_tokens": 1}\n',
            "request 1: its parent is no earlier request",
        ),
        ('{"hash_ids": 4, "timestamp": 0, "input_length": 5}\n', "request 1: hash_ids is no list"),
    ],
)
def test_a_file_that_is_none_is_said_to_be(page: Page, tmp_path: Path, content: str, complaint: str) -> None:
    settled(page)
    path = tmp_path / "broken.jsonl"
    path.write_text(content)
    page.locator("#file").set_input_files(path)
    expect(page.get_by_role("alert")).to_contain_text("broken.jsonl")
    expect(page.get_by_role("alert")).to_contain_text(complaint)
    expect(page.locator("#data")).to_contain_text("A recorded run")
