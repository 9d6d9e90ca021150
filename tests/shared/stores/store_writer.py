"""A process that writes to a disk level until it is killed: ``python store_writer.py DIR KEY SEED``.

Prints a line per acknowledged call: ``written NAMESPACE TOKEN TOKEN …`` or ``erased NAMESPACE``. Histories are not repeated.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from sealed_blocks import BlockMaker


def main(folder: str, key_file: str, seed: str) -> None:
    draw = random.Random(seed)
    maker = BlockMaker(Path(key_file), 5000)
    disk = maker.level(Path(folder), 4000)
    print("started", flush=True)
    for number in range(10**6):
        if draw.random() < 0.1:
            disk.erase(maker.keys.erase("alice").id)
            print("erased alice", flush=True)
            continue
        namespace = draw.choice(["alice", "bob"])
        tokens = [int(seed), number, *range(draw.randint(1, 12))]
        assert disk.write(maker.chain(tokens, namespace)) == len(tokens)
        print("written", namespace, *tokens, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
