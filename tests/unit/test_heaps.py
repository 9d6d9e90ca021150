"""A server's threads share two heaps of the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, sys, threading
from radixkv.cli.heaps import share_heaps

if sys.argv[2] == "share":
    share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.fopen.restype, libc.fclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
barrier = threading.Barrier(8)

def take():
    libc.malloc(10_000)
    barrier.wait()

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""


def num_heaps(folder: Path, shares: str, **environ: str) -> int:
    told = folder / "heaps.xml"
    kept = {key: value for key, value in os.environ.items() if key != "MALLOC_ARENA_MAX"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(told), shares], env=kept | environ, check=True)
    return told.read_text().count("<heap nr=")


@pytest.mark.skipif(not hasattr(os, "confstr") or not (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="not glibc")
def test_threads_share_two_heaps_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert num_heaps(tmp_path, "not") > 2
    assert num_heaps(tmp_path, "share") == 2
    assert num_heaps(tmp_path, "share", MALLOC_ARENA_MAX="1") == 1
