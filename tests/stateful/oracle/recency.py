"""Which of two cached histories was used last, from the order of calls alone.

An acquire or insert refreshes the path it used, effective when the lock drops. So a node was refreshed no earlier than the last
release of a sequence that had all of it computed, and no later than the last call on a sequence that shares a token with it.
"""

from __future__ import annotations

from .oracle import Branch, Oracle, Tokens
from .snapshot import Path, Snapshot

__all__ = ["Recency"]


class Recency:
    """Counts calls, and remembers the last one that may have and the last that must have refreshed a history."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._num_calls = 0
        self._may: dict[str, dict[Tokens, int]] = {}
        self._must: dict[str, dict[Tokens, int]] = {}
        oracle.watchers.append(self.saw)

    def saw(self, branch: Branch, is_released: bool) -> None:
        """A call on this sequence has succeeded."""
        self._num_calls += 1
        may = self._may.setdefault(branch.namespace, {})
        for end in range(1, len(branch.tokens) + 1):
            may[branch.tokens[:end]] = self._num_calls
        if is_released and self._oracle.is_current(branch):
            must = self._must.setdefault(branch.namespace, {})
            size = self._oracle.block_size
            for end in range(size, branch.num_computed + 1, size):
                must[branch.tokens[:end]] = self._num_calls

    def check(self, snapshot: Snapshot) -> None:
        """Assert that unlocked nodes bear times in the order in which they were used."""
        nodes = [path for path in snapshot.paths.values() if not path.node.lock_ref and not path.node.is_tail]
        earliest = [(self._must.get(path.node.namespace, {}).get(path.tokens, 0), path) for path in nodes]
        for path in nodes:
            latest, used_s = self._latest(path), path.node.last_access_s
            for call, other in earliest:
                is_in_order = call <= latest or used_s < other.node.last_access_s
                assert is_in_order, f"{other.node} was used after {path.node}"

    def _latest(self, path: Path) -> int:
        return self._may.get(path.node.namespace, {}).get(path.tokens[: path.num_above + 1], 0)
