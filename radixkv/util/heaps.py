"""The heaps of a server's process: Python's, and the arenas of the C library, where it is glibc.

glibc makes up to eight arenas per core. Each keeps the memory of its largest call, which the others cannot use: under
connections that break the protocol a service grew to twice its size with two. Free memory between used blocks stays with the
process, unless it is trimmed: after floods of streams that was 450 MiB of a worker's 950.
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
    """The result of `mallinfo2`; malloc.h describes the fields."""

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
    """Have all threads share two heaps, unless MALLOC_ARENA_MAX is set, and start a thread that checks every `look_s` seconds.
    It trims the heaps once more than `MAX_FREE_BYTES` are free and the process has grown by as much.

    Call it once, before threads are started.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, NUM_HEAPS)
    threading.Thread(target=_watch, args=(look_s, _resident_bytes()), name="heaps", daemon=True).start()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Pause Python's collector in the body, until `set_heap_aside`: it takes an eighth of the time of imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_heap_aside() -> None:
    """Exclude all present objects, modules above all, from Python's collector.

    Call it once, when a process begins to serve. With torch a process has some 400,000 objects, and a full collection stops it
    for 0.2 s; 2% of them are garbage.
    """
    gc.freeze()
    gc.enable()


def _watch(look_s: float, last_bytes: int) -> None:
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = _MallInfo
    except (OSError, AttributeError):
        return
    while True:
        time.sleep(look_s)
        if _resident_bytes() - last_bytes > MAX_FREE_BYTES and libc.mallinfo2().fordblks > MAX_FREE_BYTES:
            trim_heaps()
            last_bytes = _resident_bytes()


def _resident_bytes() -> int:
    """Of this process; 0 where unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim_heaps() -> None:
    """Return unused pages to the system. O(free memory), some milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
