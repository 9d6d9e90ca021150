"""How many heaps the C library keeps for the threads of a server.

glibc gives up to eight per core, and what the largest call ever took in one is kept there and not used by the others: under
connections that break the protocol a service grew to twice the size that it has with two.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

__all__ = ["share_heaps"]

NUM_HEAPS = 2
_M_ARENA_MAX = -8


def share_heaps() -> None:
    """Have all threads share two heaps, unless MALLOC_ARENA_MAX says otherwise; before threads are started. Where the C library
    is not glibc, nothing changes.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, NUM_HEAPS)
