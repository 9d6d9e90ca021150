"""Values of a file, none of which is trusted: each is read as what it should be, as nothing, or refuses its conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

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
"""Of SillyTavern's older files; they name no zone and are taken for UTC."""


class RefusedError(Exception):
    """Why a conversation of a file is not taken. `reason`: for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_text(value: Any, what: str) -> str:
    """A text of a file; empty where it is none.

    Raises:
        RefusedError: it holds half a character.
    """
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError(f"{what} is not valid Unicode") from None
    return value


def read_key(value: Any) -> str | None:
    """What names something; None where it is no text, or an empty one."""
    return value if isinstance(value, str) and value else None


def read_parent(value: Any, what: str) -> str | None:
    """The key of what a message follows; None: nothing. Raises RefusedError: it is neither."""
    if not (value is None or isinstance(value, str)):
        raise RefusedError(f"the parent of {what} is no id")
    return value


def read_source(program: str, value: Any) -> str | None:
    """By which a conversation of a program is known again; None where it has no id there."""
    key = read_key(value)
    return None if key is None else f"{program}:{key}"


def read_list(value: Any) -> list[Any]:
    """A list; empty where it is none."""
    return value if isinstance(value, list) else []


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    """An object. Raises RefusedError: it is none."""
    if not isinstance(value, dict):
        raise RefusedError(f"{what} is no object")
    return value


def read_objects(value: Any, what: str) -> list[Mapping[str, Any]]:
    """A list of objects. Raises RefusedError: it is none."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise RefusedError(f"{what} is no list of objects")
    return value


def read_time(value: Any) -> float | None:
    """A time of a file, in seconds since 1970; None where it is none. Also one in milliseconds, or as ISO 8601 writes it."""
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
