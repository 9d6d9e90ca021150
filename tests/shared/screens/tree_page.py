"""What tests of the tree page do and look at."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

__all__ = ["ask", "colour", "named_colour", "number_of_nodes", "walk_to"]


def ask(page: Page, expression: str) -> Any:
    """What the page's own `tree` and `drawing` say."""
    script = (
        "() => import('/static/tree/main.js').then(({view}) => { const {tree, drawing} = view; return (EXPRESSION); })"
    )
    return page.evaluate(script.replace("EXPRESSION", expression))


def walk_to(page: Page, *keys: str) -> None:
    """Press keys on the drawing, once there is something to walk on."""
    expect(page.locator(".count")).to_have_text(re.compile(r"^[1-9]"))
    page.locator("#drawing").focus()
    for key in keys:
        page.keyboard.press(key)


def number_of_nodes(page: Page, number: int) -> None:
    expect(page.locator(".count")).to_have_text(f"{number} node{'s' if number != 1 else ''}")


def colour(page: Page, selector: str) -> str:
    return str(page.locator(selector).evaluate("(element) => getComputedStyle(element).color"))


def named_colour(page: Page, name: str) -> str:
    script = """(name) => {
      const probe = document.createElement('i');
      probe.style.color = `var(${name})`;
      document.body.append(probe);
      return getComputedStyle(probe).color;
    }"""
    return str(page.evaluate(script, name))
