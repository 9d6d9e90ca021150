"""The three memories of the page on fragmentation, as the browser runs them, held against Python's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from browser import open_page
from chat_stack import chat_stack
from playwright.sync_api import Browser, Page

from bench.fragmentation.replay import Memory, Outcome, Paged, Reserve, Sharing, replay, requests_of
from radixkv.simulate import Shape

STEP_S = 0.05
ROUND_TOKENS = 320
PLAY = """
async ([text, settings]) => {
  const { readStream, requestsOf } = await import("/static/fragmentation/stream.js");
  const { Player, WAYS } = await import("/static/fragmentation/player.js");
  const stream = readStream("made up", text);
  const player = new Player(requestsOf(stream, { step_s: settings.step_s, rate: 1, share: 1 }), settings);
  await player.measure();
  player.seek(player.numSteps);
  player.replays[2].memory.check();
  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  return WAYS.map(({ key }) => {
    const own = player.figures[key];
    const { found, numSteps, numPreempted, numComputedTokens } = own;
    const sums = { tokens: sum(own.tokens), held: sum(own.held), running: sum(own.running) };
    return { found, numSteps, numPreempted, numComputedTokens, ...sums };
  });
}
"""


@pytest.fixture(scope="module")
def page(default_model: str, browser: Browser) -> Iterator[Page]:
    with chat_stack(default_model) as stack, open_page(browser, f"http://{stack.server.address}/fragmentation") as page:
        yield page


def chats(seed: int, num_requests: int = 90, reach: int = 10) -> list[Shape]:
    """Chats that go on, regenerate and edit what came up to `reach` requests before, and strangers among them."""
    source = random.Random(seed)
    shapes: list[Shape] = []
    for index in range(num_requests):
        parent = source.randrange(max(0, index - reach), index) if index and source.random() < 0.8 else None
        most = 0 if parent is None else shapes[parent].prompt_tokens + shapes[parent].generated_tokens
        shared = source.choice([most, source.randint(1, most)]) if most else 0
        is_repeated = parent is not None and source.random() < 0.2
        if is_repeated and parent is not None:
            shared = shapes[parent].prompt_tokens
        shared = min(shared, 400)
        prompt = shared + (0 if is_repeated else source.randint(1, 60))
        shapes.append(Shape(index * 0.4, prompt, source.randint(1, 50), parent if shared else None, shared))
    return shapes


def lines(shapes: Sequence[Shape]) -> str:
    return "".join(json.dumps(shape._asdict()) + "\n" for shape in shapes)


def in_browser(page: Page, shapes: Sequence[Shape], num_slots: int, block_size: int) -> list[dict[str, Any]]:
    settings = {
        "numSlots": num_slots,
        "blockSize": block_size,
        "reply": 50,
        "roundTokens": ROUND_TOKENS,
        "step_s": STEP_S,
    }
    found: list[dict[str, Any]] = page.evaluate(PLAY, [lines(shapes), settings])
    return found


def in_python(shapes: Sequence[Shape], num_slots: int, block_size: int) -> list[Outcome]:
    requests = requests_of(shapes, STEP_S)
    memories: list[Memory] = [Reserve(num_slots, 50), Paged(num_slots, block_size), Sharing(num_slots, block_size)]
    return [replay(memory, requests, ROUND_TOKENS) for memory in memories]


def as_told(outcome: Outcome) -> dict[str, Any]:
    return {
        "found": outcome.found,
        "numSteps": outcome.num_steps,
        "numPreempted": outcome.num_preempted,
        "numComputedTokens": outcome.num_computed,
        "tokens": outcome.tokens,
        "held": outcome.held,
        "running": outcome.running,
    }


@pytest.mark.parametrize(("seed", "num_slots", "block_size"), [(1, 1024, 16), (2, 768, 8), (3, 2048, 64), (4, 4096, 1)])
def test_reserving_and_paging_are_what_they_are_in_python(
    page: Page, seed: int, num_slots: int, block_size: int
) -> None:
    shapes = chats(seed)
    told, expected = in_browser(page, shapes, num_slots, block_size), in_python(shapes, num_slots, block_size)
    assert told[0] == as_told(expected[0])
    assert told[1] == as_told(expected[1])


@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_page_s_tree_finds_what_the_prefix_cache_finds(page: Page, seed: int, block_size: int) -> None:
    shapes = chats(seed)
    told = in_browser(page, shapes, 1 << 16, block_size)[2]
    expected = in_python(shapes, 1 << 16, block_size)[2]
    for name in ("found", "numSteps", "numComputedTokens", "tokens", "running"):
        assert told[name] == as_told(expected)[name], name
    assert abs(told["held"] - expected.held) <= 0.02 * expected.held  # the cache copies a full hit's end a little later


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_under_eviction_it_finds_nearly_as_much_and_serves_all(page: Page, seed: int) -> None:
    shapes = chats(seed, 200, reach=80)
    told, expected = in_browser(page, shapes, 1024, 16)[2], in_python(shapes, 1024, 16)[2]
    ample = sum(tokens or 0 for tokens in in_python(shapes, 1 << 16, 16)[2].found)
    assert None not in told["found"]
    there = sum(tokens or 0 for tokens in expected.found)
    assert there < 0.9 * ample, "little was evicted"
    total = sum(shape.prompt_tokens for shape in shapes)
    assert abs(sum(told["found"]) - there) <= 0.05 * total  # whole branches are evicted there, single blocks here


def test_the_recorded_run_found_what_the_page_s_tree_finds_once_everyone_before_is_done(page: Page) -> None:
    recorded = page.evaluate("async () => (await fetch('/static/fragmentation/recorded.json')).text()")
    rows = json.loads(recorded)["requests"]
    settings = {"numSlots": 65536, "blockSize": 16, "reply": 256, "roundTokens": ROUND_TOKENS, "step_s": STEP_S / 50}
    told = page.evaluate(PLAY, [recorded, settings])[2]
    pairs = [(row["found_tokens"], tokens) for row, tokens in zip(rows, told["found"], strict=True)]
    measured = sum(found for found, _ in pairs if found is not None)
    again = sum(tokens for found, tokens in pairs if found is not None)
    assert all(found <= tokens for found, tokens in pairs if found is not None)
    assert measured >= 0.98 * again
