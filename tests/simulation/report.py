"""What a run came to, in words."""

from __future__ import annotations

from .world import Outcome

__all__ = ["describe"]

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
