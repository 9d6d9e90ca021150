"""Who may wait for whom and what they must be told, from token tuples alone; a part of the oracle.

A sequence provides while it has a block or more to compute of what it has tokens and room for. Whoever waits is told exactly
once for each sequence and number of tokens: `published` when that many are computed, `gone` when they never will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from radixkv.core.api import AcquireOp, Notice, Pending

if TYPE_CHECKING:
    from .oracle import Branch, Oracle, Tokens

__all__ = ["Waits"]


class Waits:
    """What was answered by `Pending` and is not told yet; `due`: what must have been told by now."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.watched: dict[int, set[int]] = {}
        self.due: list[Notice] = []
        self.num_pending = 0
        self.num_notices = 0

    def furthest(self, namespace: str, tokens: Tokens) -> tuple[int, set[int]]:
        """Most leading tokens that anyone open will have computed, and the sequences that will."""
        reached: dict[int, int] = {}
        for branch in self._oracle.branches.values():
            reach = min(len(branch.tokens), branch.room)
            provides = reach - branch.num_computed >= self._oracle.block_size
            if provides and branch.namespace == namespace and self._oracle.is_current(branch):
                reached[branch.seq_id] = _common(tokens, branch.tokens[:reach])
        most = max(reached.values(), default=0)
        return most, {seq_id for seq_id, length in reached.items() if length == most}

    def must_wait(self, op: AcquireOp, tokens: Tokens, num_matched: int) -> bool:
        """Whether this acquire must wait where so much of it is cached."""
        if not (op.waits and op.share_prefix):
            return False
        size, furthest = self._oracle.block_size, self.furthest(op.namespace, tokens)[0]
        wanted = -(-op.at_least // size) * size if op.whole_blocks else op.at_least
        return furthest >= max(self._oracle.usable(op, num_matched) + size, wanted)

    def pending(self, op: AcquireOp, tokens: Tokens, result: Pending, least_match: int) -> None:
        """An acquire was answered so, with at least that much of it cached."""
        assert self.must_wait(op, tokens, least_match), f"{op} answered {result}"
        most, providers = self.furthest(op.namespace, tokens)
        assert result.num_tokens == most, f"{op} answered {result}, {most} tokens are being computed"
        assert result.seq_id in providers, f"{op} answered {result}, expected one of {providers}"
        self.watched.setdefault(result.seq_id, set()).add(most)
        self.num_pending += 1

    def computed(self, branch: Branch) -> None:
        reached = {length for length in self.watched.get(branch.seq_id, ()) if length <= branch.num_computed}
        self._tell("published", branch.seq_id, reached)

    def ended(self, branch: Branch) -> None:
        self._tell("gone", branch.seq_id, set(self.watched.get(branch.seq_id, ())))

    def cleared(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self.ended(branch)

    def told(self, notices: list[Notice]) -> None:
        """These and no others have been told since the last time."""
        assert sorted(notices) == sorted(self.due), f"{notices} were told, {self.due} are due"
        self.due = []

    def _tell(self, kind: str, seq_id: int, lengths: set[int]) -> None:
        self.due += [Notice(kind, seq_id, length) for length in lengths]  # type: ignore[arg-type]  # one of two kinds
        self.num_notices += len(lengths)
        if lengths:
            self.watched[seq_id] -= lengths
            if not self.watched[seq_id]:
                del self.watched[seq_id]


def _common(left: Tokens, right: Tokens) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
