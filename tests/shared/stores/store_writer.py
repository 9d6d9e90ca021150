"""A process that writes to a disk level until it is killed: ``python store_writer.py DIR KEY SEED``.

Prints a line per acknowledged call: ``written NAMESPACE TOKEN TOKEN …`` or ``erased NAMESPACE``. Histories are not repeated.
Writes at most `MAX_WRITTEN` blocks, so that on a quick disk too nothing is evicted.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from sealed_blocks import BlockMaker

__all__ = ["MAX_WRITTEN", "NUM_BLOCKS"]

NUM_BLOCKS = 20_000
MAX_WRITTEN = NUM_BLOCKS - 2_000
MAX_EXTRA = 12


def main(folder: str, key_file: str, seed: str) -> None:
    draw = random.Random(seed)
    maker = BlockMaker(Path(key_file), 5000)
    disk = maker.level(Path(folder), NUM_BLOCKS)
    print("started", flush=True)
    for number in range(MAX_WRITTEN // (2 + MAX_EXTRA)):
        if draw.random() < 0.1:
            disk.erase(maker.keys.erase("alice").id)
            print("erased alice", flush=True)
            continue
        namespace = draw.choice(["alice", "bob"])
        tokens = [int(seed), number, *range(draw.randint(1, MAX_EXTRA))]
        assert disk.write(maker.chain(tokens, namespace)) == len(tokens)
        print("written", namespace, *tokens, flush=True)
    time.sleep(300)  # until it is killed


if __name__ == "__main__":
    main(*sys.argv[1:])
