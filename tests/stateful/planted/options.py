"""Bugs to plant in the options of an acquire: enough that is cached, whole blocks of it."""

from __future__ import annotations

from .core import PlantedBug

__all__ = ["PLANTED_OPTIONS"]

PLANTED_OPTIONS = (
    PlantedBug(
        "an acquire of whole blocks that takes part of one",
        "cache/prefix_cache.py",
        "            if num_over := walk.matched_bytes % forest.block_bytes:\n",
        "            if num_over := 0:\n",
    ),
    PlantedBug(
        "an acquire opened where one token too few is cached",
        "cache/prefix_cache.py",
        "if walk.matched_bytes < num_wanted * TOKEN_BYTES:",
        "if walk.matched_bytes + TOKEN_BYTES < num_wanted * TOKEN_BYTES:",
    ),
    PlantedBug(
        "an acquire that waits for who does not get so far",
        "cache/prefix_cache.py",
        "max(num_matched, num_wanted - forest.block_size)",
        "num_matched",
    ),
    PlantedBug(
        "an acquire of whole blocks that waits for less of them than it asks for",
        "cache/prefix_cache.py",
        "            num_wanted += -at_least % forest.block_size\n",
        "",
    ),
)
