"""The tree page before 10,000 nodes. Run it with -s to see what a frame costs, what a difference weighs, how often it looks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from browser import open_page
from chat_stack import gibberish_engine
from playwright.sync_api import Browser, Page, expect
from tree_follower import follower
from tree_stack import TreeStack, tree_stack

from radixkv.core.api import AcquireOp, InsertOp, ReleaseOp, StepOp
from radixkv.core.tokens import pack_tokens

NUM_PROMPTS, NUM_TURNS, NUM_REPLIES = 100, 33, 2
NUM_NODES = NUM_PROMPTS * (1 + NUM_TURNS * (1 + NUM_REPLIES))
STEP_OPS = 600
FRAME_MS = 1000 / 60


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[TreeStack]:
    with (
        gibberish_engine(default_model) as (engine, _, text),
        tree_stack(engine, text, num_blocks=65536, block_size=4) as stack,
    ):
        _fill(stack)
        assert len(stack.holder.dump()) == NUM_NODES
        yield stack


def _fill(stack: TreeStack) -> None:
    """System prompts, turns below them, and replies below these, each a whole number of blocks."""
    words = list(stack.text.encode("the river " * 8 + "begins in the mountains", special=False))
    ops: list[StepOp] = []
    seq_id = 0
    for prompt in range(NUM_PROMPTS):
        system = [1000 + prompt, *(words[i % len(words)] for i in range(prompt % 60 * 4 + 19))]
        for turn in range(NUM_TURNS):
            for reply in range(NUM_REPLIES):
                seq_id += 1
                tokens = [*system, 2000 + turn, *words[:7], 3000 + reply, *words[:11]]
                ops.append(AcquireOp(pack_tokens(tokens), seq_id=seq_id))
                ops += [InsertOp(seq_id, len(tokens)), ReleaseOp(seq_id)]
            if len(ops) >= STEP_OPS:
                stack.holder.step(ops)
                ops.clear()
    stack.holder.step(ops)


def ask(page: Page, expression: str) -> Any:
    script = (
        "() => import('/static/tree/main.js').then(({view}) => { const {tree, drawing} = view; return (EXPRESSION); })"
    )
    return page.evaluate(script.replace("EXPRESSION", expression))


INTERVALS = """() => import('/static/tree/main.js').then(({view}) => new Promise((done) => {
  const times = [];
  const next = (now) => {
    times.push(now);
    if (times.length > 120) return done(times.slice(1).map((time, index) => time - times[index]));
    view.drawing.zoom(times.length < 60 ? 1.08 : 1 / 1.08);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}))"""
"""Times between the frames of a zoom in and out, in milliseconds."""


def test_a_frame_of_ten_thousand_nodes_is_drawn_in_time(browser: Browser, stack: TreeStack) -> None:
    with open_page(browser, stack.url, viewport={"width": 1440, "height": 900}) as page:
        expect(page.locator(".count")).to_have_text(f"{NUM_NODES:,} nodes")
        box = page.locator("#drawing").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        ask(page, "drawing.frames_ms.splice(0)")
        for delta in (*[-120] * 40, *[120] * 40):
            page.mouse.wheel(0, delta)
        page.mouse.down()
        for step in range(40):
            page.mouse.move(box["x"] + 300 + 4 * step, box["y"] + 200 + 3 * step)
        page.mouse.up()
        frames = sorted(ask(page, "drawing.frames_ms"))
        told = {share: round(frames[int(share * (len(frames) - 1))], 1) for share in (0.5, 0.9, 0.99)}
        print(f"{NUM_NODES:,} nodes: {len(frames)} frames, ms by share {told}, longest {frames[-1]:.1f}")
        assert len(frames) > 40
        assert statistics.median(frames) < FRAME_MS
        apart_ms = sorted(page.evaluate(INTERVALS))
        print(f"frames come every {statistics.median(apart_ms):.1f} ms, longest {apart_ms[-1]:.1f}")
        arranged_ms = ask(
            page,
            "(() => { const began = performance.now(); tree.apply({reset: false, done: true, now_s: tree.now_s(), "
            "nodes: [], gone: []}, true); return performance.now() - began; })()",
        )
        print(f"rows found for all of them in {arranged_ms:.1f} ms")
        assert ask(page, "tree.at(tree.order[5000].position + 0.5, tree.order[5000].row) === tree.order[5000]")


def test_a_change_among_ten_thousand_nodes_is_told_in_few_bytes(stack: TreeStack) -> None:
    began_s = time.perf_counter()
    stack.holder.dump()
    print(f"a listing takes {1000 * (time.perf_counter() - began_s):.0f} ms")
    with follower(stack.server.address) as eye:
        eye.wait_until(lambda: len(eye.nodes) == NUM_NODES)
        all_bytes, eye.num_tree_bytes = eye.num_tree_bytes, 0
        stack.store("One more history, which nobody has asked for before.")
        num_more = len(stack.holder.dump()) - NUM_NODES
        eye.wait_until(lambda: len(eye.nodes) == NUM_NODES + num_more)  # twenty times its duration is without a listing
        print(f"all nodes {all_bytes:,} bytes, {num_more} new ones {eye.num_tree_bytes:,}")
        assert eye.num_tree_bytes < 1000
        stack.holder.evict_branch(stack.text.encode("One", special=False))
