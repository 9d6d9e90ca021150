"""An engine of the hash model over a disk level, until it is killed: ``python store_worker.py FOLDER SEED``.

Asks for the first prompts of the life before, then for its own, without end, in a pool that holds three of them. Each reply is
checked against the model. Prints a line per reply: ``before`` or ``own``, and the tokens that the store had.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from stored_engine import ask, draw, serving

from radixkv.stores.costs import PrefillCost, PrefillMeter

PROMPT_TOKENS, NUM_BEFORE = 200, 10


def slow_cost(_: PrefillMeter) -> PrefillCost | None:
    """All is loaded rather than computed."""
    return PrefillCost(1.0, 0.0)


def main(folder: str, seed: str) -> None:
    PrefillMeter.cost = slow_cost  # type: ignore[method-assign]
    with serving(Path(folder), 160, size_bytes=32 << 20, num_rows=60) as engine:
        print("started", flush=True)
        before = [("before", int(seed) - 1, number) for number in range(NUM_BEFORE)]
        own = (("own", int(seed), number) for number in itertools.count())
        for whose, life, number in itertools.chain(before, own):
            usage = ask(engine, draw(10_000 * life + number, PROMPT_TOKENS), 2).usage
            print(whose, usage.num_loaded_tokens, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
