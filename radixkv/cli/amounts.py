"""Numbers and times as text in a line."""

from __future__ import annotations

__all__ = ["count", "duration"]


def count(number: int, what: str) -> str:
    """``1 node``, ``2,000 nodes``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """About two digits: ``3.2 s``, ``15 min``, ``2.5 h``."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
    return f"{max(seconds, 0.0) * 1e3:.0f} ms"
