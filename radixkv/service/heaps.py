"""The heaps that the C library keeps for the threads of a server, where it is glibc; elsewhere nothing is done.

glibc gives up to eight per core, and what the largest call ever took in one is kept there and not used by the others: under
connections that break the protocol a service grew to twice the size that it has with two. What lies free between what is in
use stays with the process, unless it is asked to give it back.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

__all__ = ["share_heaps", "trim_heaps"]

NUM_HEAPS = 2
_M_ARENA_MAX = -8


def share_heaps() -> None:
    """Have all threads share two heaps, unless MALLOC_ARENA_MAX says otherwise; before threads are started."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, NUM_HEAPS)


def trim_heaps() -> None:
    """Give the pages back on which nothing is in use. O(free memory), some milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
