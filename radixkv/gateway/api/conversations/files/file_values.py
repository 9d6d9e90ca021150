"""Untrusted values of a file: each is read as the expected type, as empty, or its conversation is rejected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from radixkv.gateway.protocol.fields import MAX_NAME_CHARACTERS

__all__ = [
    "RefusedError",
    "read_key",
    "read_list",
    "read_object",
    "read_objects",
    "read_parent",
    "read_source",
    "read_text",
    "read_time",
]

_MAX_DATE_CHARACTERS = 40
_DATE_FORMS = ("%B %d, %Y %I:%M%p", "%Y-%m-%d @%Hh %Mm %Ss %fms", "%Y-%m-%d@%Hh%Mm%Ss")
"""Date formats of SillyTavern's older files; they name no time zone and are read as UTC."""


class RefusedError(Exception):
    """A conversation of a file is rejected. `reason`: for users."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_text(value: Any, what: str) -> str:
    """Return a text of a file; empty where the value is not a text.

    Raises:
        RefusedError: it contains half a character.
    """
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError(f"{what} is not valid Unicode") from None
    return value


def read_key(value: Any) -> str | None:
    """Return an identifier; None where the value is not a text, or empty."""
    return value if isinstance(value, str) and value else None


def read_parent(value: Any, what: str) -> str | None:
    """Return the key of a message's parent; None: no parent. Raises RefusedError: the value is neither."""
    if not (value is None or isinstance(value, str)):
        raise RefusedError(f"the parent of {what} is no id")
    return value


def read_source(program: str, value: Any) -> str | None:
    """Return the key by which a program's conversation is recognized again; None where it has no id there, or a long one."""
    key = read_key(value)
    return None if key is None or len(key) > MAX_NAME_CHARACTERS else f"{program}:{key}"


def read_list(value: Any) -> list[Any]:
    """Return a list; empty where the value is not a list."""
    return value if isinstance(value, list) else []


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    """Return an object. Raises RefusedError: the value is not an object."""
    if not isinstance(value, dict):
        raise RefusedError(f"{what} is no object")
    return value


def read_objects(value: Any, what: str) -> list[Mapping[str, Any]]:
    """Return a list of objects. Raises RefusedError: the value is something else."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise RefusedError(f"{what} is no list of objects")
    return value


def read_time(value: Any) -> float | None:
    """Return a time in seconds since 1970, from seconds, milliseconds or ISO 8601; None for other values."""
    if isinstance(value, str) and len(value) <= _MAX_DATE_CHARACTERS:
        return _read_date(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e14:
        return None
    return float(value) / (1000 if value >= 1e11 else 1) if math.isfinite(value) else None


def _read_date(text: str) -> float | None:
    for form in (None, *_DATE_FORMS):
        try:
            date = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
        return seconds if seconds >= 0 else None
    return None
