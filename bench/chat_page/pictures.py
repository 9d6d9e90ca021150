"""Takes the README's pictures of the pages: a complete `radixkv up` with the real model, in a real browser.

    python -m bench.chat_page.pictures                 all of them, into bench/results (a minute on two cores)
    python -m bench.chat_page.pictures --only chat     one of them
    python -m bench.chat_page.pictures --folder DIR    into another folder

Needs Chromium and the packages of `pip install 'radixkv[all]'`. Replies in the pictures are the model's, from this run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.report import RESULTS_DIR, bench_parser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["DEADLINE_MS", "main", "running_browser", "running_site"]

WIDE = {"width": 1280, "height": 760}
PHONE = {"width": 390, "height": 760}
DEADLINE_MS = 120_000
STOP_S = 30.0
SETTLE_MS = 3000
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_site(*flags: str) -> Iterator[str]:
    """Run a complete radixkv in a separate process, with further flags of `radixkv up`; the address of its pages."""
    with tempfile.TemporaryDirectory(prefix="radixkv-pictures-") as folder:
        command = [sys.executable, "-m", "radixkv", "up", "--no-chat", "--http", "127.0.0.1:0", "--state", "none"]
        command += ["--listen", f"unix:{folder}/worker", "--service-listen", f"unix:{folder}/service", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        try:
            seen: list[str] = []
            for line in process.stdout:
                seen.append(line)
                if found := re.search(r"chat page\s+(http://\S+)/", line):
                    yield found.group(1)
                    return
            raise SystemExit("radixkv up did not start:\n" + "".join(seen))
        finally:
            process.terminate()
            process.wait(STOP_S)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start the machine's Chromium, headless."""
    chromium = next(filter(None, map(shutil.which, _NAMES)), None)
    if chromium is None:
        raise SystemExit("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def say(page: Page, text: str) -> None:
    """Send a message, and wait for the reply."""
    count = page.locator("article").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()  # there once no reply runs
    page.locator("article").nth(count + 1).wait_for()
    wait_until_written(page)


def wait_until_written(page: Page) -> None:
    """Wait until no branch has a reply in progress."""
    page.locator(".outline .writing-mark").first.wait_for(state="detached")


def converse(page: Page) -> None:
    """A conversation with a few branches."""
    page.get_by_role("button", name=re.compile("^1 reply|drafts")).click()
    page.get_by_label("Longest reply").fill("120")
    page.get_by_label("Temperature").fill("0.4")
    page.get_by_role("button", name=re.compile("^1 reply")).click()
    say(page, "What is a radix tree good for? Answer in two sentences.")
    say(page, "Write a short Python function that adds two numbers.")
    article = page.locator("article.complete").last
    article.get_by_role("button", name="Regenerate").click()
    page.locator("article .versions").last.get_by_text("2 / 2").wait_for()
    wait_until_written(page)
    page.locator("article.user").nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit: You").fill("Name three cities in France, as a list.")
    page.get_by_role("button", name="Send as a new branch").click()
    page.get_by_text("three cities").first.wait_for()
    wait_until_written(page)
    say(page, "And three in Spain.")


def chat(page: Page) -> None:
    """The chat after a few branches."""
    converse(page)


def drafts(page: Page) -> None:
    """Four drafts side by side."""
    page.get_by_role("button", name=re.compile("^1 reply|drafts")).click()
    page.get_by_label("Drafts at once").fill("4")
    page.get_by_label("Longest reply").fill("90")
    page.get_by_role("button", name=re.compile("drafts")).click()
    page.get_by_label("Message", exact=True).fill("Write a short poem about branches.")
    page.keyboard.press("Enter")
    page.locator(".column").nth(3).wait_for()
    wait_until_written(page)


def tree(page: Page) -> None:
    """The tree of the conversations, with a node selected."""
    page.locator("#drawing").focus()
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_timeout(SETTLE_MS)


def fragmentation(page: Page) -> None:
    """Three pools half-way through the recorded run."""
    page.locator(".outcome").first.wait_for()
    page.wait_for_timeout(SETTLE_MS)


PICTURES: dict[str, tuple[str, Callable[[Page], None], dict[str, int], str]] = {
    "chat": ("/", chat, WIDE, "light"),
    "drafts": ("/", drafts, WIDE, "dark"),
    "phone": ("/", chat, PHONE, "light"),
    "tree": ("/tree", tree, WIDE, "light"),
    "fragmentation": ("/fragmentation", fragmentation, {"width": 1280, "height": 1000}, "light"),
}
"""By name: path, function that prepares the page, size of the window, colours."""


def take(browser: Browser, site: str, name: str, folder: Path) -> Path:
    """Take one picture."""
    path, act, size, colours = PICTURES[name]
    context = browser.new_context(viewport=size, color_scheme=colours, reduced_motion="reduce")  # type: ignore[arg-type]  # one of two
    page = context.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.goto(site + path)
    act(page)
    target = folder / f"page-{name}.png"
    page.screenshot(path=target)
    context.close()
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    parser = bench_parser("chat_page.pictures", __doc__)
    parser.add_argument("--only", action="append", choices=PICTURES, help="one of them; may be repeated")
    parser.add_argument("--folder", type=Path, default=RESULTS_DIR, help="where to (default: bench/results)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    with running_site() as site, running_browser() as browser:
        for name in options.only or PICTURES:
            print(take(browser, site, name, options.folder), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
