"""Result of erasing a namespace's stored blocks; see `Engine.erase`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ErasedLevel"]


class ErasedLevel(NamedTuple):
    """A level of the block store. `is_erased`: its blocks are deleted; False: it cannot be reached, and is tried again."""

    level: str
    is_erased: bool
