"""A worker's block store, as its clients see it; see `Engine.find_stored` and `Engine.erase`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ErasedLevel", "StoredPrefix"]


class ErasedLevel(NamedTuple):
    """A level of the block store. `is_erased`: its blocks are deleted; False: it cannot be reached, and is tried again."""

    level: str
    is_erased: bool


class StoredPrefix(NamedTuple):
    """Stored tokens of a prompt after its cached ones.

    `load_s`, `compute_s`: expected times of either way, in seconds; None: unknown. `way`: of a request that comes now:
    ``"load"``, ``"compute"``, ``"both"``; empty where there are none.
    """

    num_tokens: int = 0
    load_s: float | None = None
    compute_s: float | None = None
    way: str = ""
