"""A server's threads share two heaps of the C library, and what lies free there is given back."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixkv.util.heaps import collector_at_rest

SCRIPT = """
import ctypes, sys, threading
from radixkv.util.heaps import keep_heaps_small

if sys.argv[2] == "share":
    keep_heaps_small()
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


TRIMMED = """
import ctypes, time
from pathlib import Path
from radixkv.util.heaps import keep_heaps_small

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_heaps_small(0.1)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallopt(-3, 30 << 20)  # blocks of up to 30 MiB lie on the heap
blocks = [libc.malloc(28 << 20) for _ in range(5)]
for block in blocks:
    ctypes.memset(block, 1, 28 << 20)
before = resident_mib()
for block in blocks[:-1]:  # the last one keeps the heap from shrinking; from the third on there is enough to be trimmed
    libc.free(block)
until = time.monotonic() + 300
while before - resident_mib() < 80 and time.monotonic() < until:
    time.sleep(0.05)
print(before - resident_mib())
"""


def num_heaps(folder: Path, shares: str, **environ: str) -> int:
    told = folder / "heaps.xml"
    kept = {key: value for key, value in os.environ.items() if key != "MALLOC_ARENA_MAX"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(told), shares], env=kept | environ, check=True)
    return told.read_text().count("<heap nr=")


glibc_only = pytest.mark.skipif(
    not hasattr(os, "confstr") or not (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="not glibc"
)


@glibc_only
def test_threads_share_two_heaps_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert num_heaps(tmp_path, "not") > 2
    assert num_heaps(tmp_path, "share") == 2
    assert num_heaps(tmp_path, "share", MALLOC_ARENA_MAX="1") == 1


@glibc_only
def test_what_lies_free_between_what_is_in_use_is_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", TRIMMED], capture_output=True, text=True, check=True)
    assert int(run.stdout) >= 80


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_the_collector_rests_during_imports_and_no_longer(ends: str) -> None:
    with contextlib.suppress(ImportError), collector_at_rest():
        assert not gc.isenabled()
        if ends == "badly":
            raise ImportError
    assert gc.isenabled()
