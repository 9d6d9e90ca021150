"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import re

from radixkv.core.errors import InvalidArgumentError

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {"": 1, **{letter: 2 ** (10 * power) for power, letter in enumerate("KMGTP", 1)}}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("KMGTP", 1)}
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(?:([KMGTP]?)(i?)B?)", re.IGNORECASE)


def parse_bytes(text: str, argument: str = "size") -> int:
    """Bytes of ``"80GiB"``, ``"80G"`` (the same), ``"80GB"`` (of 1000), or ``"1073741824"``.

    Raises:
        InvalidArgumentError: the text is no size; names `argument`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(argument, text, "a size such as 512MiB, 80GiB, 24GB or a number of bytes")
    number, unit, binary = match[1], match[2].upper(), match[3]
    is_decimal = unit and not binary and text.strip().upper().endswith("B")
    return int(float(number) * (_DECIMAL[unit] if is_decimal else _UNITS[unit]))


def format_bytes(size: int) -> str:
    """The size in the largest binary unit with a value of at least 1, three digits or more: ``"70.3 KiB"``, ``"8.58 GiB"``."""
    value, unit = float(size), "B"
    for letter in "KMGTP":
        if abs(value) < 1024:
            break
        value, unit = value / 1024, f"{letter}iB"
    if unit == "B":
        return f"{size:,} B"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}"
