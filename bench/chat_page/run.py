"""Speed of the chat page, in the machine's headless Chromium, against a complete `radixkv up`.

    open     a conversation of 300 messages, from the navigation to the frame that shows its last message; and the processor
             time of the page's thread for it, which separates the page's cost from load on the machine
    key      a key in its message field, from the event to the frame after it
    stream   a reply of 40 tokens in a tree of 3,000 messages, including its start and end: the longest task of the page, in
             wall time and in processor time
    drafts   four drafts that stream side by side: the time between frames

    python -m bench.chat_page             5 rounds of each (two minutes)
    python -m bench.chat_page --quick     1 round, a small tree: a smoke test; written only with --json

The model is tiny and writes random letters, so that the browser has the processor; `--model default` runs the real model at the
same time. Headless Chromium draws in software, on the same cores. Each round checks that the page showed the expected content.
Exit code of a full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.chat_page.content import TOP_K, large_tree, long_conversation, save_model
from bench.chat_page.pictures import DEADLINE_MS, running_browser, running_site
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, percentile, summarise

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["main"]

OPEN_BOUND_MS, KEY_BOUND_MS, TASK_BOUND_MS, FRAME_BOUND_MS = 1000.0, 20.0, 50.0, 17.5
LATE_MS = 20.0
NUM_KEYS = 40
DRAFT_TOKENS, NUM_DRAFTS = 600, 4
SETTLE_MS = 1500
SIZE = {"width": 1280, "height": 800}

TRACED = ["disabled-by-default-devtools.timeline"]
WATCH_FRAMES = """() => {
  window.frames = [];
  let before = performance.now();
  const frame = (now) => {
    window.frames.push(now - before);
    before = now;
    if (document.querySelectorAll(".column").length < 4 || document.querySelector(".writing, .writing-mark")) {
      requestAnimationFrame(frame);
    } else window.isOver = true;
  };
  requestAnimationFrame((now) => ((before = now), requestAnimationFrame(frame)));
}"""
WATCH_KEYS = """() => {
  window.keys = [];
  const channel = new MessageChannel();
  let began;
  channel.port1.onmessage = () => window.keys.push(performance.now() - began);
  document.getElementById("composer-text").addEventListener("keydown", (event) => {
    began = event.timeStamp;
    requestAnimationFrame(() => channel.port2.postMessage(null));
  }, true);
}"""
IS_OPEN = """(number) => {
  const articles = document.querySelectorAll("article");
  if (articles.length !== number) return 0;
  const { top, bottom } = articles[number - 1].getBoundingClientRect();
  return bottom > 0 && top < innerHeight ? performance.now() : 0;
}"""
CHOOSE = "(settings) => localStorage.setItem('radixkv.settings', JSON.stringify(settings))"


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]  # of two numbers
    page = context.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.goto(address)
    yield page
    context.close()


class Task(NamedTuple):
    """Task of the page's thread, in wall time and in processor time."""

    clock_ms: float
    busy_ms: float


def tasks_of(trace: dict[str, Any]) -> list[Task]:
    """All tasks of a trace's pages, without nested ones."""
    events = trace["traceEvents"]
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    found = [
        each
        for each in events
        if each["ph"] == "X" and each["name"] == "RunTask" and (each["pid"], each["tid"]) in threads
    ]
    tasks, ends = [], dict.fromkeys(threads, 0.0)
    for each in sorted(found, key=lambda one: (one["ts"], -one["dur"])):
        thread = each["pid"], each["tid"]
        if each["ts"] + each["dur"] > ends[thread]:
            ends[thread] = each["ts"] + each["dur"]
            tasks.append(Task(each["dur"] / 1e3, each.get("tdur", 0) / 1e3))
    return tasks


class Bench:
    """Rounds of all measures on one site."""

    def __init__(self, browser: Browser, site: str, num_messages: int, num_nodes: int) -> None:
        self._browser = browser
        self._site = site
        self._num_messages = num_messages
        self._long = f"{site}/#{long_conversation(site, num_messages)}"
        self._tree = f"{site}/#{large_tree(site, num_nodes)}"
        self.open_ms: list[float] = []
        self.open_busy_ms: list[float] = []
        self.key_ms: list[float] = []
        self.task_ms: list[float] = []
        self.busy_ms: list[float] = []
        self.frame_ms: list[float] = []

    def round(self) -> None:
        """Run each measure once."""
        self._open_and_type()
        self._open_traced()
        self._stream()
        self._draft()

    def _open_and_type(self) -> None:
        with opened(self._browser, self._long) as page:
            told = page.wait_for_function(IS_OPEN, arg=self._num_messages)
            self.open_ms.append(float(told.json_value()))
            page.wait_for_timeout(SETTLE_MS)
            page.evaluate(WATCH_KEYS)
            page.locator("#composer-text").focus()
            page.keyboard.type("a key after the other, as one writes ....."[:NUM_KEYS], delay=47)
            page.wait_for_function("(number) => window.keys.length === number", arg=NUM_KEYS)
            self.key_ms += page.evaluate("window.keys")

    def _open_traced(self) -> None:
        with opened(self._browser, "about:blank") as page:
            self._browser.start_tracing(page=page, categories=TRACED)
            page.goto(self._long)
            page.wait_for_function(IS_OPEN, arg=self._num_messages)
            tasks = tasks_of(json.loads(self._browser.stop_tracing()))
            self.open_busy_ms.append(sum(task.busy_ms for task in tasks))

    def _stream(self) -> None:
        with opened(self._browser, self._tree) as page:
            page.locator("article").last.wait_for()
            page.locator("#composer-text").fill("One more question.")
            page.locator(".outline-row").first.wait_for()
            page.wait_for_timeout(2 * SETTLE_MS)
            before = page.locator("article").count()
            self._browser.start_tracing(page=page, categories=TRACED)
            page.keyboard.press("Enter")
            page.wait_for_function("(number) => document.querySelectorAll('article').length === number", arg=before + 2)
            page.locator("article.assistant").last.locator(".cost").wait_for()
            page.wait_for_timeout(SETTLE_MS)
            tasks = tasks_of(json.loads(self._browser.stop_tracing()))
            self.task_ms.append(max(task.clock_ms for task in tasks))
            self.busy_ms.append(max(task.busy_ms for task in tasks))

    def _draft(self) -> None:
        with opened(self._browser, self._site) as page:
            page.evaluate(CHOOSE, {"n": NUM_DRAFTS, "max_tokens": DRAFT_TOKENS, "top_k": TOP_K})
            page.reload()
            page.locator("#composer-text").fill("Four drafts.")
            page.keyboard.press("Enter")
            page.locator(".column").nth(NUM_DRAFTS - 1).wait_for()
            page.evaluate(WATCH_FRAMES)
            page.wait_for_function("() => window.isOver")
            texts = [len(text) for text in page.locator(".column-body").all_inner_texts()]
            if min(texts) < DRAFT_TOKENS / 2:
                raise AssertionError(f"drafts of {texts} characters")
            self.frame_ms += page.evaluate("window.frames")


def make_report(bench: Bench, options: argparse.Namespace, num_messages: int, num_nodes: int) -> Report:
    report = Report("chat_page", 0)
    late = sum(each > LATE_MS for each in bench.frame_ms) / len(bench.frame_ms)
    measured = {
        f"open {num_messages} messages": bench.open_ms,
        "the same, of a processor's time": bench.open_busy_ms,
        "a key to the next frame": bench.key_ms,
        f"longest task, a reply in {num_nodes:,} messages": bench.task_ms,
        "that task, of a processor's time": bench.busy_ms,
        f"between frames, {NUM_DRAFTS} drafts": bench.frame_ms,
    }
    rows = []
    for name, samples in measured.items():
        told = summarise(samples)
        rows.append((name, str(told.n), f"{told.p50:.1f}", f"{percentile(samples, 0.95):.1f}", f"{told.max:.1f}"))
    report.tables.append(Table("the chat page, ms", ("", "samples", "median", "95 of 100 below", "greatest"), rows))
    report.figures = {
        "model": options.model,
        "num_messages": num_messages,
        "num_nodes": num_nodes,
        "open_ms": summarise(bench.open_ms)._asdict(),
        "open_processor_ms": summarise(bench.open_busy_ms)._asdict(),
        "key_ms": {**summarise(bench.key_ms)._asdict(), "p95": percentile(bench.key_ms, 0.95)},
        "longest_task_ms": bench.task_ms,
        "longest_task_processor_ms": bench.busy_ms,
        "frame_ms": {**summarise(bench.frame_ms)._asdict(), "p95": percentile(bench.frame_ms, 0.95)},
        "share_of_frames_above_20_ms": late,
    }
    report.bars = [
        Bar(f"{num_messages} messages open, median", summarise(bench.open_ms).p50, OPEN_BOUND_MS, " ms"),
        Bar("the same, of a processor's time", summarise(bench.open_busy_ms).p50, OPEN_BOUND_MS, " ms"),
        Bar("a key to the next frame, median", summarise(bench.key_ms).p50, KEY_BOUND_MS, " ms"),
        Bar("the longest task of a reply, of all rounds", max(bench.task_ms), TASK_BOUND_MS, " ms"),
        Bar("that task, of a processor's time", max(bench.busy_ms), TASK_BOUND_MS, " ms"),
        Bar("between frames of four drafts, median", summarise(bench.frame_ms).p50, FRAME_BOUND_MS, " ms"),
    ]
    return report


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("chat_page", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--rounds", type=int, help="how many (default: 5, with --quick 1)")
    parser.add_argument("--model", default="tiny", help="as of radixkv up (default: one made here)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/chat_page.json on a full run)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_rounds = options.rounds or (1 if options.quick else 5)
    num_messages, num_nodes = (40, 200) if options.quick else (300, 3000)
    progress = Progress("rounds", num_rounds)
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        model = save_model(Path(folder)) if options.model == "tiny" else options.model
        flags = ["--model", model, "--dtype", "float32"] if options.model == "tiny" else ["--model", model]
        with running_site(*flags) as site, running_browser() as browser:
            bench = Bench(browser, site, num_messages, num_nodes)
            for _ in range(num_rounds):
                bench.round()
                progress.advance()
    is_full = not options.quick and options.rounds is None and options.model == "tiny"
    path = options.json or (RESULTS_DIR / "chat_page.json" if is_full else None)
    return make_report(bench, options, num_messages, num_nodes).finish(path, is_quick=options.quick)
