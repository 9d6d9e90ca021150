"""The heaps of a server's process: Python's, and those that the C library keeps for threads, where it is glibc.

glibc gives up to eight per core, and what the largest call ever took in one is kept there and not used by the others: under
connections that break the protocol a service grew to twice the size that it has with two. What lies free between what is in
use stays with the process, unless it is asked to give it back: after floods of streams that was 450 MiB of a worker's 950.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["collector_at_rest", "keep_heaps_small", "set_heap_aside", "trim_heaps"]

NUM_HEAPS = 2
MAX_FREE_BYTES = 64 << 20
LOOK_S = 20.0
_M_ARENA_MAX = -8


class _MallInfo(ctypes.Structure):
    """What `mallinfo2` tells of all heaps; malloc.h has the names' meaning."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def keep_heaps_small(look_s: float = LOOK_S) -> None:
    """Have all threads share two heaps, unless MALLOC_ARENA_MAX says otherwise, and have a thread that looks every `look_s`
    seconds give back what lies free, once more than `MAX_FREE_BYTES` do and the process has grown by as much.

    To be called once, before threads are started.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, NUM_HEAPS)
    threading.Thread(target=_watch, args=(look_s,), name="heaps", daemon=True).start()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Within, until `set_heap_aside`, Python's collector does not run: an eighth of the time that imports take is its."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_heap_aside() -> None:
    """Have Python's collector never look again at what has been made so far, modules above all.

    To be called once, when a process begins to serve. With torch in it a process has some 400,000 objects, and stops for 0.2 s
    each time the collector looks at them all; what it would find is 2% of them.
    """
    gc.freeze()
    gc.enable()


def _watch(look_s: float) -> None:
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = _MallInfo
    except (OSError, AttributeError):
        return
    last_bytes = _resident_bytes()
    while True:
        time.sleep(look_s)
        if _resident_bytes() - last_bytes > MAX_FREE_BYTES and libc.mallinfo2().fordblks > MAX_FREE_BYTES:
            trim_heaps()
            last_bytes = _resident_bytes()


def _resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim_heaps() -> None:
    """Give the pages back on which nothing is in use. O(free memory), some milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
