"""The tree page in Chromium, before a real service whose pool a holder fills and empties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import WIDTHS, check_accessible, check_clean, open_page, phone
from chat_stack import Watched, gateway, gibberish_engine
from playwright.sync_api import Browser, Page, expect
from tree_page import ask, colour, named_colour, number_of_nodes, walk_to
from tree_stack import TreeStack, busy_stack, operators_file, store, tree_stack

from radixkv import PoolShape, connect
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.generations.text import ChatText

SYSTEM = "You are a helpful assistant who knows all rivers of Europe and their towns. "
RHINE = SYSTEM + "Where does the Rhine begin, and through which towns does it flow?"
LOIRE = SYSTEM + "Where does the Loire end?"
DANUBE = SYSTEM + "Which capitals lie on the Danube?"


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Watched, ChatText]]:
    with gibberish_engine(default_model) as (engine, _, text):
        yield engine, text


@pytest.fixture
def stack(worker: tuple[Watched, ChatText]) -> Iterator[TreeStack]:
    with tree_stack(*worker) as stack:
        yield stack


@pytest.fixture
def rivers(stack: TreeStack) -> TreeStack:
    """One system prompt under three questions: four nodes at least."""
    stack.store(RHINE, LOIRE, DANUBE)
    return stack


@pytest.fixture
def page(browser: Browser, rivers: TreeStack) -> Iterator[Page]:
    with open_page(browser, rivers.url) as page:
        yield page


# -- what is shown


def test_nodes_appear_with_their_text_and_go_on_doing_so(rivers: TreeStack, page: Page) -> None:
    number_of_nodes(page, len(rivers.holder.dump()))
    walk_to(page, "ArrowRight")
    expect(page.locator("#where")).to_contain_text("You are a helpful assistant")
    expect(page.locator(".text.own")).to_contain_text("knows all rivers of Europe")
    page.keyboard.press("Escape")
    rivers.store("A history of its own.")
    number_of_nodes(page, len(rivers.holder.dump()))


def test_an_eviction_shows_at_once(rivers: TreeStack, page: Page) -> None:
    number_of_nodes(page, len(rivers.holder.dump()))
    rivers.holder.evict(3)
    told = page.locator(".left")
    expect(told).to_contain_text("3 blocks evicted")
    number_of_nodes(page, len(rivers.holder.dump()))
    expect(page.locator("section[aria-labelledby=card-evictions] .figure")).to_contain_text("3 blocks")
    assert colour(page, ".left") == named_colour(page, "--text-soft")


def test_who_stands_on_a_node_is_told(rivers: TreeStack, page: Page) -> None:
    tokens = rivers.text.encode(LOIRE + " And the Seine?", special=False)
    seq = rivers.holder.acquire(tokens)
    rivers.holder.insert(seq.seq_id, len(tokens))
    walk_to(page, "ArrowRight")
    below = page.locator(".facts").get_by_text("1 sequence")
    expect(below).to_be_visible()
    rivers.holder.release(seq.seq_id)
    expect(below).to_have_count(0)


def test_the_figures_of_the_pool_have_words(rivers: TreeStack, page: Page) -> None:
    rivers.store(RHINE)
    expect(page.get_by_role("img", name=re.compile("Of 256 blocks of 4 tokens"))).to_be_visible()
    expect(page.locator("section[aria-labelledby=card-saved]")).to_contain_text("tokens not computed")
    rivers.holder.evict(2)
    expect(page.get_by_role("img", name=re.compile("Blocks evicted in each ten seconds"))).to_be_visible()


def test_how_many_more_requests_fit_is_told_live_for_a_length_of_ones_own(rivers: TreeStack, page: Page) -> None:
    room = page.locator(".room")
    expect(room).to_contain_text("1 more request fits now")  # of 1,024 tokens, in 256 blocks of 4
    room.get_by_label("of").fill("64")
    room.get_by_label("of").press("Tab")
    stats = rivers.holder.stats()
    expect(room.locator("strong")).to_have_text(str(stats.num_more(64)))
    seq = rivers.holder.acquire(range(1000, 1000 + 4 * 100))
    expect(room.locator("strong")).to_have_text(str(rivers.holder.stats().num_more(64)))
    rivers.holder.release(seq.seq_id)
    room.get_by_label("of").fill("-3")
    room.get_by_label("of").press("Tab")
    expect(room.get_by_label("of")).to_have_value("64")


def test_an_empty_tree_says_how_it_is_filled(browser: Browser, stack: TreeStack) -> None:
    with open_page(browser, stack.url) as page:
        expect(page.get_by_text("Nothing is cached yet")).to_be_visible()
        check_accessible(page)
        stack.store(LOIRE)
        expect(page.get_by_text("Nothing is cached yet")).to_have_count(0)


def test_a_text_is_found(page: Page) -> None:
    page.get_by_label("Search the text of the tree").fill("danube")
    expect(page.locator(".search [role=status]")).to_have_text("1 node")
    page.keyboard.press("Enter")
    expect(page.locator(".text.own")).to_contain_text("Danube")


def test_without_a_service_the_page_says_what_to_start_it_with(
    browser: Browser, worker: tuple[Watched, ChatText]
) -> None:
    with gateway(worker[0]) as server, open_page(browser, f"http://{server.address}/tree") as page:
        expect(page.get_by_text("radixkv gateway --worker")).to_be_visible()
        check_accessible(page)


def test_a_gateway_that_is_away_is_said_to_be(browser: Browser, rivers: TreeStack) -> None:
    with open_page(browser, rivers.url) as page:
        number_of_nodes(page, len(rivers.holder.dump()))
        rivers.server.close()
        expect(page.get_by_text("The gateway cannot be reached")).to_be_visible()
        number_of_nodes(page, len(rivers.holder.dump()))


def test_a_service_that_restarts_is_waited_for(browser: Browser, worker: tuple[Watched, ChatText]) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as first:
        (address,) = first.addresses
        config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, service=address)
        with connect(address, PoolShape(64, 4)) as holder:
            store(holder, range(30))
    with gateway(worker[0], config) as server, open_page(browser, f"http://{server.address}/tree") as page:
        expect(page.get_by_text("The cache service does not answer")).to_be_visible()
        with ServiceThread(ServiceConfig(addresses=(address,))):
            expect(page.get_by_text("No worker holds the pool")).to_be_visible()
            with connect(address, PoolShape(64, 4)) as holder:
                store(holder, range(30))
                number_of_nodes(page, len(holder.dump()))
                expect(page.get_by_text("No worker holds the pool")).to_have_count(0)


def test_without_motion_what_has_gone_is_gone_at_once(browser: Browser, rivers: TreeStack) -> None:
    with open_page(browser, rivers.url, reduced_motion="reduce") as page:
        number_of_nodes(page, len(rivers.holder.dump()))
        rivers.holder.evict(1)
        expect(page.locator(".left")).to_contain_text("1 block evicted")
        assert ask(page, "tree.numGhosts") == 0


def test_the_page_shows_a_worker_at_work(browser: Browser, default_model: str) -> None:
    with (
        busy_stack(default_model) as (server, engine, runner),
        open_page(browser, f"http://{server.address}/tree") as page,
    ):
        expect(page.get_by_text("Nothing is cached yet")).to_be_visible()
        runner.gate.close_after(40)
        params = [
            GenerateParams(
                text=f"{RHINE} And question {number}?", sampling=SamplingParams(max_tokens=60, ignore_eos=True)
            )
            for number in range(8)
        ]
        streams = [engine.generate(each) for each in params]
        expect(page.get_by_role("img", name=re.compile(r"[1-9]\d* in use"))).to_be_visible()
        expect(page.locator(".count")).not_to_have_text("0 nodes")
        runner.gate.open()
        for stream in streams:
            list(stream)
        expect(page.locator("section[aria-labelledby=card-saved]")).to_contain_text(
            re.compile(r"\d (s|min) of computing")
        )
        with connect(server.config.service or "") as reader:
            number_of_nodes(page, len(reader.dump()))
        check_accessible(page)


# -- what is done from there


def test_a_pin_shows_its_time_and_survives_eviction_until_it_is_ended(rivers: TreeStack, page: Page) -> None:
    walk_to(page, "ArrowRight")
    page.get_by_role("button", name="Pin 5 min").click()
    expect(page.locator(".said")).to_contain_text("pinned for 5 min")
    expect(page.locator(".pin-row")).to_contain_text(re.compile(r"[45]:\d\d left"))
    (pin,) = rivers.holder.pins()
    assert 240 < pin.remaining_s <= 300
    rivers.holder.evict(1000)
    page.get_by_role("button", name="Close the panel").click()
    number_of_nodes(page, len(rivers.holder.dump()))
    walk_to(page, "ArrowRight")
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator(".said")).to_contain_text("has ended")
    assert rivers.holder.pins() == []


def test_a_branch_is_evicted_once_that_is_confirmed(rivers: TreeStack, page: Page) -> None:
    before = len(rivers.holder.dump())
    walk_to(page, "ArrowRight", "ArrowRight")
    page.get_by_role("button", name="Evict…").click()
    page.get_by_role("button", name="Keep").click()
    assert len(rivers.holder.dump()) == before
    page.get_by_role("button", name="Evict…").click()
    check_accessible(page)
    page.get_by_role("dialog").get_by_role("button", name="Evict").click()
    expect(page.locator(".said")).to_contain_text("evicted")
    assert len(rivers.holder.dump()) < before
    assert rivers.holder.match(rivers.text.encode(SYSTEM, special=False)).num_tokens > 0


def test_an_operator_makes_room_in_the_whole_pool(rivers: TreeStack, page: Page) -> None:
    page.get_by_role("button", name="Make room…").click()
    page.get_by_role("spinbutton", name="Blocks").fill("1000")
    page.get_by_role("dialog").get_by_role("button", name="Evict").click()
    expect(page.locator(".said")).to_contain_text("evicted")
    assert rivers.holder.dump() == []


# -- tenants


@pytest.fixture
def tenants(worker: tuple[Watched, ChatText], tmp_path: Path) -> Iterator[TreeStack]:
    keys = operators_file(tmp_path / "keys.toml", ("red", "blue"), ("chief",))
    with tree_stack(*worker, keys_file=keys) as stack:
        stack.store(RHINE, LOIRE, namespace="red")
        stack.store("The secret of the blue ones is kept well.", namespace="blue")
        yield stack


@pytest.mark.parametrize(("key", "sees"), [("red", "red"), ("blue", "blue"), ("chief", None)])
def test_a_tenant_sees_his_own_and_an_operator_all(
    browser: Browser, tenants: TreeStack, key: str, sees: str | None
) -> None:
    with open_page(browser, tenants.url) as page:
        page.get_by_role("textbox", name="Key").fill(key)
        page.keyboard.press("Enter")
        number_of_nodes(page, len(tenants.holder.dump(sees)))
        page.get_by_role("button", name="List").click()
        expect(page.get_by_role("heading", name=re.compile("red|blue"))).to_have_count(1 if sees else 2)
        expect(page.get_by_role("button", name="Make room…")).to_have_count(0 if sees else 1)


# -- for everybody


def test_all_of_it_can_be_done_with_the_keyboard(rivers: TreeStack, page: Page) -> None:
    number_of_nodes(page, len(rivers.holder.dump()))
    where = page.locator("#where")
    while page.evaluate("document.activeElement.id") != "drawing":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(where).to_contain_text("You are a helpful assistant")
    page.keyboard.press("ArrowRight")
    first = where.text_content()
    page.keyboard.press("ArrowDown")
    expect(where).not_to_have_text(first or "")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(where).to_contain_text("You are a helpful assistant")
    page.keyboard.press("Enter")
    while "Pin 5 min" not in (page.evaluate("document.activeElement.textContent") or ""):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".pin-row")).to_be_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "drawing"
    assert len(rivers.holder.pins()) == 1


def test_the_list_tells_what_the_drawing_tells(page: Page) -> None:
    page.get_by_role("button", name="List").click()
    top = page.get_by_role("button", name=re.compile("Branches of the node at 0"))
    expect(top).to_contain_text("▸")
    top.click()
    expect(page.locator(".list")).to_contain_text("Which capitals lie")
    check_accessible(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_at_any_width(browser: Browser, rivers: TreeStack, scheme: str, width: int) -> None:
    with open_page(browser, rivers.url, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        walk_to(page, "ArrowRight")
        page.get_by_role("button", name="Pin 1 h").click()
        expect(page.locator(".pin-row")).to_be_visible()
        page.get_by_text("What the signs mean").click()
        check_clean(page)
        page.get_by_text("What the signs mean").click()
        page.get_by_text("How this is computed").click()
        rivers.holder.evict(1)
        expect(page.locator(".left")).to_be_visible()
        page.get_by_role("button", name="List").click()
        page.get_by_role("button", name=re.compile("Branches of the node")).first.click()
        expect(page.locator(".list")).to_contain_text("helpful assistant")
        check_clean(page)
        page.get_by_role("button", name="Make room…").click()
        check_clean(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, rivers: TreeStack) -> None:
    with open_page(browser, rivers.url, viewport=phone, has_touch=True) as page:
        number_of_nodes(page, len(rivers.holder.dump()))
        legend = page.locator("section[aria-labelledby=card-pool] .keys li")
        expect(legend).to_have_text(["in use", "pinned", "evictable", "free"])
        assert all(one.is_visible() for one in legend.all())
        box = page.locator("#drawing").bounding_box()
        assert box is not None
        assert box["width"] > 330
        page.touchscreen.tap(box["x"] + 60, box["y"] + 22 + 24 + 12)
        expect(page.locator(".text.own")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= phone["width"]
        check_accessible(page)
