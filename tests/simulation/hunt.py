"""Runs the simulation over whichever radixkv lies in the working folder, and says after how many seeds it found a bug there.

python -m tests.simulation.hunt MAX_SEEDS      prints `found after N seeds: ...`, or `survived` after so many
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from pathlib import Path

import radixkv

from .report import refusals
from .world import simulate

__all__ = ["hunt"]


def hunt(max_seeds: int) -> str:
    """What was found first, in a line."""
    counts: Counter[str] = Counter()
    for seed in range(max_seeds):
        outcome = simulate(seed)
        counts += outcome.counts
        violation = outcome.violation or refusals(counts)
        if violation:
            first_line = violation.partition("\n")[0]
            return f"found after {seed + 1} seeds: {first_line}"
    return "survived"


if __name__ == "__main__":
    package = Path(radixkv.__file__).resolve()
    assert package.is_relative_to(Path.cwd()), f"{package} is not the copy in {Path.cwd()}"
    logging.disable()
    print(hunt(int(sys.argv[1])))
