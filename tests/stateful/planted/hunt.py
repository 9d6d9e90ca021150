"""Runs the machine, and the pairs of `neighbours`, over whichever radixkv lies in the working folder; whether they find a bug.

python -m stateful.planted.hunt MAX_EXAMPLES      prints `found: ...`, or `survived` after so many examples
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

import radixkv

from ..neighbours import check_neighbour
from ..test_in_process import InProcessMachine

NUM_STREAMS = 4
"""What a stream of draws meets is chance, and changes with each version of Hypothesis: what one misses the next may meet."""

NUM_NEIGHBOURS = 4
"""Pairs of caches that are compared before the machine runs."""


def hunt(max_examples: int) -> str | None:
    """What the machine found, in a line; None if nothing in any of `NUM_STREAMS` streams of so many examples."""
    quick = settings(
        max_examples=max_examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        for number in range(NUM_NEIGHBOURS):
            check_neighbour(number)
        for stream in range(NUM_STREAMS):
            machine = type("SeededMachine", (InProcessMachine,), {})
            run_state_machine_as_test(seed(stream)(machine) if stream else machine, settings=quick)
    except HypothesisException:
        raise
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        return f"{type(error).__name__} {message}"
    return None


if __name__ == "__main__":
    package = Path(radixkv.__file__).resolve()
    assert package.is_relative_to(Path.cwd()), f"{package} is not the copy in {Path.cwd()}"
    found = hunt(int(sys.argv[1]))
    print(f"found: {found}" if found else "survived")
