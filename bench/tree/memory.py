"""Metadata of one prefix cache in bytes per cached token, measured in a separate process.

``python -m bench.tree.memory NAME YARDSTICK LEAF_TOKENS NUM_LEAVES PEER_DIR`` prints the figure. Two yardsticks:

    resident    growth of the process's resident memory, for every system alike (a native core allocates outside Python's
                tracer); histories are made one at a time and dropped
    traced      Python's own allocations (tracemalloc), for radixkv: exact

Both start before the cache is made, with a pool that the histories exactly fill, so its free list is counted as well.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

from bench.tree.peers import load_system
from bench.tree.systems import Ours, System
from bench.tree.workload import random_tokens

__all__ = ["measure_memory"]

LEAVES_PER_PARENT = 100
PARENT_TOKENS = 64
BLOCK_SIZE = 16


def measure_memory(name: str, yardstick: str, leaf_tokens: int, num_leaves: int, peer_dir: Path) -> float:
    """Bytes per token of the named system, from a fresh process."""
    arguments = [name, yardstick, str(leaf_tokens), str(num_leaves), str(peer_dir)]
    command = [sys.executable, "-m", "bench.tree.memory", *arguments]
    root = Path(__file__).resolve().parents[2]
    return float(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def _resident_bytes() -> int:
    """Resident memory after collecting garbage and returning free heap pages."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def _load(system: System, leaf_tokens: int, num_leaves: int) -> int:
    """Cache the leaves. Returns the number of their tokens."""
    source = random.Random(leaf_tokens)
    parent = b""
    num_cached = 0
    for index in range(num_leaves):
        if index % LEAVES_PER_PARENT == 0:
            parent = random_tokens(source, PARENT_TOKENS)
            num_cached += PARENT_TOKENS
        system.load(parent + random_tokens(source, leaf_tokens))
        num_cached += leaf_tokens
    return num_cached


def _blocks_needed(leaf_tokens: int, num_leaves: int) -> int:
    num_parents = -(-num_leaves // LEAVES_PER_PARENT)
    return (num_parents * PARENT_TOKENS + num_leaves * leaf_tokens) // BLOCK_SIZE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("yardstick", choices=["resident", "traced"])
    parser.add_argument("leaf_tokens", type=int)
    parser.add_argument("num_leaves", type=int)
    parser.add_argument("peer_dir", type=Path)
    options = parser.parse_args()

    system: System = Ours(2048) if options.name == Ours.name else load_system(options.name, 2048, options.peer_dir)
    _load(system, options.leaf_tokens, 1)  # objects allocated once, at first use
    if options.yardstick == "traced":
        tracemalloc.start()
    before = _resident_bytes()
    system.reset(_blocks_needed(options.leaf_tokens, options.num_leaves))
    num_tokens = _load(system, options.leaf_tokens, options.num_leaves)
    after = _resident_bytes()
    num_bytes = tracemalloc.get_traced_memory()[0] if options.yardstick == "traced" else after - before
    print(num_bytes / num_tokens)


if __name__ == "__main__":
    main()
