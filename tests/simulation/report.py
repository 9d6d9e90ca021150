"""What a run came to, in words."""

from __future__ import annotations

from collections import Counter

from .world import Outcome

__all__ = ["describe", "refusals"]

_LAST_NOTES = 30


def describe(outcome: Outcome) -> str:
    """What was violated, the last that happened before, and the command that replays it; or what happened how often."""
    if not outcome.violation:
        happened = "  ".join(f"{name} {count:,}" for name, count in sorted(outcome.counts.items()))
        return f"seed {outcome.seed}: {outcome.num_events:,} events, no violation\n{happened}"
    last = "\n".join(map(str, outcome.trace[-_LAST_NOTES:]))
    return (
        f"seed {outcome.seed}: {outcome.violation}\nthe last that happened:\n{last}\n"
        f"replay it: python -m tests.simulation --seed {outcome.seed} --trace"
    )


def refusals(counts: Counter[str]) -> str:
    """What is wrong if restarted services could not take sequences on more than now and then; empty if nothing.

    A sequence that is refused is computed again: slower, never wrong. It is to be rare.
    """
    num_refused, num_adopted = counts["notice lost"], counts["adopted"]
    is_rare = num_refused <= 3 + num_adopted // 100
    return "" if is_rare else f"{num_refused} of {num_adopted} restarted services could not take a sequence on"
