"""JSON from outside, parsed with bounds on its nesting and its number of values.

The standard parser recurses as deep as Python's stack; at its end anything fails, also code that the garbage collector runs
there. And it holds the interpreter's lock from the first byte to the last.

Both are counted before anything is parsed, on the text without its strings, by calls that run in C:

    {"a": [1, 2.5, "so, {so}"]}    ->    [:[0,0.0,]]
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MAX_NESTING", "num_values", "read_json"]

MAX_NESTING = 200
"""Levels of arrays and objects."""

MAX_CONTAINERS = 65_536
"""Arrays and objects of a text of up to `FULL_BYTES`; of a longer one in proportion, like all following bounds."""

MAX_NAMES = 100_000
MAX_STRINGS = 300_000
MAX_FRACTIONS = 50_000
MAX_VALUES = 500_000
MAX_DIGITS = 1_000
"""Of one number, in a text that is not short: parsing a number takes the square of its length."""

FULL_BYTES = 4 * 1024 * 1024
SHORT_CHARACTERS = 64 * 1024
"""A text of up to so many is parsed in a few milliseconds."""

_STRUCTURE = bytes.maketrans(b"{}123456789eE", b"[]000000000..")
_BLANKS = b" \t\r\n"
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]")


def read_json(text: str | bytes) -> Any:
    """Parse a text. O(length).

    Raises:
        ValueError: not JSON, or out of the bounds; a `json.JSONDecodeError`, except where bytes are no text.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if len(text) > SHORT_CHARACTERS or text.count("[") + text.count("{") > MAX_NESTING:
        problem = _problem(text.encode("utf-8", "surrogatepass"))
        if problem is not None:
            raise json.JSONDecodeError(problem, text, 0)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's own bound, of some thousands of digits
        raise json.JSONDecodeError("a number has too many digits", text, 0) from None


def num_values(text: str) -> int:
    """An upper bound of the number of values in a JSON text. O(length)."""
    structure = _structure(_without_escapes(text.encode("utf-8", "surrogatepass")))
    return structure.count(b",") + structure.count(b"[") + 1


def _problem(text: bytes) -> str | None:
    """The bound that a text exceeds, or None."""
    scale = max(1.0, len(text) / FULL_BYTES)
    text = _without_escapes(text)
    if text.count(b'"') > 2 * MAX_STRINGS * scale:
        return f"it holds more than {MAX_STRINGS:,} strings"
    structure = _structure(text)
    bounds = (
        (b"[", MAX_CONTAINERS, "arrays and objects"),
        (b":", MAX_NAMES, "names in its objects"),
        (b".", MAX_FRACTIONS, "numbers with a fraction or an exponent"),
        (b",", MAX_VALUES, "values"),
    )
    for mark, bound, what in bounds:
        if structure.count(mark) > bound * scale:
            return f"it holds more than {bound:,} {what}"
    if len(text) > SHORT_CHARACTERS and b"0" * (MAX_DIGITS + 1) in structure:
        return f"a number has more than {MAX_DIGITS:,} digits"
    if _is_too_deep(structure.translate(None, _ALL_BUT_BRACKETS)):
        return f"nested deeper than {MAX_NESTING} levels"
    return None


def _without_escapes(text: bytes) -> bytes:
    """The text without escapes, so that every `"` in it begins or ends a string.

    True as far as it is JSON. The rest after its first fault is never parsed.
    """
    return text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text


def _structure(text: bytes) -> bytes:
    """The text outside of strings: objects as arrays, digits as 0, an exponent as a point, without blanks."""
    return b"".join(text.split(b'"')[::2]).translate(_STRUCTURE, _BLANKS)


def _is_too_deep(brackets: bytes) -> bool:
    """Whether brackets are nested deeper than `MAX_NESTING`; unmatched ones may pass up to twice that."""
    for _ in range(MAX_NESTING):
        inner = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == inner:
            break
    return b"[]" in brackets or brackets.count(b"[") > MAX_NESTING
