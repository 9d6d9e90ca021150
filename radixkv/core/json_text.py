"""JSON that comes from outside, read with a bound on how deep it is nested.

The standard parser goes as deep as Python's stack: at its end anything fails, also what the garbage collector happens to run
there.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["MAX_NESTING", "read_json"]

MAX_NESTING = 200
"""Levels of arrays and objects."""

_MARKS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def read_json(text: str | bytes) -> Any:
    """The value that a text says. O(length).

    Raises:
        ValueError: it is not JSON, or nested deeper than `MAX_NESTING`; a `json.JSONDecodeError` but where bytes are no text.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if text.count("[") + text.count("{") > MAX_NESTING:
        _check_nesting(text)
    return json.loads(text)


def _check_nesting(text: str) -> None:
    depth = 0
    for mark in _MARKS.finditer(text):
        match text[mark.start()]:
            case "[" | "{":
                depth += 1
                if depth > MAX_NESTING:
                    raise json.JSONDecodeError(f"nested deeper than {MAX_NESTING} levels", text, mark.start())
            case "]" | "}":
                depth -= 1
