"""Runs seeds of the simulation: a service, workers and clients on simulated time, from one number each.

python -m tests.simulation --seeds 100000            seeds 0 to 99,999, or from --first on; stops at the first violation
python -m tests.simulation --seed 17 --trace         one seed, with all that happened
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from .report import describe
from .world import simulate

_PROGRESS_EVERY_S = 5.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print all that happened, with --seed")
    return parser.parse_args()


def _run_one(seed: int, *, has_trace: bool) -> int:
    outcome = simulate(seed)
    if has_trace:
        print("\n".join(map(str, outcome.trace)))
    print(describe(outcome))
    return 1 if outcome.violation else 0


def _run_many(first: int, number: int) -> int:
    started_s = told_s = time.monotonic()
    counts: Counter[str] = Counter()
    num_events = num_run = 0
    try:
        for seed in range(first, first + number):
            outcome = simulate(seed)
            if outcome.violation:
                print(describe(outcome))
                return 1
            counts += outcome.counts
            num_events += outcome.num_events
            num_run += 1
            if time.monotonic() - told_s > _PROGRESS_EVERY_S:
                told_s = time.monotonic()
                print(f"{num_run:,} of {number:,} seeds, {num_run / (told_s - started_s):.1f} a second", flush=True)
    except KeyboardInterrupt:
        print()
    seconds = time.monotonic() - started_s
    print(f"{num_run:,} seeds from {first:,}, {num_events:,} events, no violation, {seconds:.1f} s")
    print("  ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    return 0


def main() -> int:
    """Run what the command line asks for; the exit status."""
    arguments = _parse()
    logging.disable()  # a cut quota is no news here
    if arguments.seed is None:
        return _run_many(arguments.first, arguments.seeds)
    try:
        return _run_one(arguments.seed, has_trace=arguments.trace)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
