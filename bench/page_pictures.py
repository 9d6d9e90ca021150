"""Pictures of a page of a running gateway, light, dark and on a phone, by the machine's Chromium.

radixkv up --no-chat                 # and something to look at: chats, a job
python -m bench.page_pictures http://127.0.0.1:8000/tree --out pictures --keys ArrowRight,ArrowRight
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
SETTLE_MS = 3000
KEYS_SETTLE_MS = 800
SIZES = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


def main() -> None:
    """Write one PNG of each kind."""
    options = _options()
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise SystemExit("no Chromium on this machine: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name in SIZES:
            _picture(browser, name, options)
        browser.close()


def _picture(browser: Browser, name: str, options: argparse.Namespace) -> None:
    context = browser.new_context(**SIZES[name])  # type: ignore[arg-type]  # each of its argument's type
    page = context.new_page()
    page.goto(options.url)
    page.wait_for_timeout(SETTLE_MS)
    if options.keys:
        page.locator(options.focus).focus()
        for key in options.keys.split(","):
            page.keyboard.press(key)
        page.wait_for_timeout(KEYS_SETTLE_MS)
    file = options.out / f"{name}.png"
    page.screenshot(path=file, full_page=options.full)
    print(f"{file}: {file.stat().st_size:,} bytes")
    context.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder (default %(default)s)")
    parser.add_argument("--keys", default="", help="pressed before, separated by commas, such as ArrowRight,ArrowRight")
    parser.add_argument("--focus", default="#drawing", help="what gets the keys (default %(default)s)")
    parser.add_argument("--full", action="store_true", help="the whole page, not just what the window shows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
