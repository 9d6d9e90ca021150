"""Whose turn it is: namespaces that wait for the same place share it by what they were given, in tokens of their histories.

    namespace a   ──[due first][then by rank]──┐   served  4,200
    namespace b   ──[due first][then by rank]──┼─> 1,900   <- the least served goes first among equals
    namespace c   ──[due first][then by rank]──┘           7,000

So a thousand requests of one namespace keep a single one of another waiting no longer than one of them. A namespace that comes
begins where the one served last stands: what it did not ask for while it was away is not owed to it.
"""

from __future__ import annotations

from sortedcontainers import SortedKeyList

from radixkv.worker.branch import Branch

__all__ = ["FairLines"]


class _Line:
    """Branches of one namespace. `served`: tokens given to it so far, on the scale of all; `is_due`: its first one is due."""

    __slots__ = ("by_due", "by_rank", "is_due", "served")

    def __init__(self, served: int) -> None:
        self.by_due: SortedKeyList = SortedKeyList(key=lambda branch: (branch.due_s, branch.order))
        self.by_rank: SortedKeyList = SortedKeyList(
            key=lambda branch: (-branch.priority, -branch.num_matched, branch.order)
        )
        self.served = served
        self.is_due = False


class FairLines:
    """Branches that wait, in a line per namespace. O(log n) per call, amortised."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._by_first: SortedKeyList = SortedKeyList(key=lambda line: line.by_due[0].due_s)
        self._by_rank: SortedKeyList = SortedKeyList(
            key=lambda line: (-line.by_rank[0].priority, line.served, *line.by_rank.key(line.by_rank[0]))
        )
        self._due: SortedKeyList = SortedKeyList(key=lambda line: (line.served, line.by_due[0].due_s))
        self._num_branches = 0
        self._served_last = 0

    def __len__(self) -> int:
        return self._num_branches

    def branches(self) -> list[Branch]:
        """All of them, the due first of each line first."""
        return [branch for line in self._lines.values() for branch in line.by_due]

    def add(self, branch: Branch) -> None:
        """A branch waits."""
        namespace = branch.generation.namespace
        line = self._lines.get(namespace)
        if line is None:
            line = self._lines[namespace] = _Line(self._served_last)
        else:
            self._leave(line)
        line.by_due.add(branch)
        line.by_rank.add(branch)
        self._num_branches += 1
        self._enter(line)

    def discard(self, branch: Branch) -> None:
        """It waits no longer."""
        namespace = branch.generation.namespace
        line = self._lines[namespace]
        self._leave(line)
        line.by_due.remove(branch)
        line.by_rank.remove(branch)
        self._num_branches -= 1
        if line.by_due:
            self._enter(line)
        else:
            del self._lines[namespace]

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """So much of its history is cached now, which changes its rank."""
        line = self._lines[branch.generation.namespace]
        self._leave(line)
        line.by_rank.remove(branch)
        branch.num_matched = num_tokens
        line.by_rank.add(branch)
        self._enter(line)

    def head(self, now_s: float) -> Branch | None:
        """Who goes first: of the least served namespace among those that have somebody due or somebody of the highest priority,
        the one due first, or else the first by rank.
        """
        while self._by_first and self._by_first[0].by_due[0].due_s <= now_s:
            line = self._by_first.pop(0)
            line.is_due = True
            self._due.add(line)
        if not self._num_branches:
            return None
        chosen: _Line = self._by_rank[0]
        if self._due and self._due[0].served <= chosen.served:
            chosen = self._due[0]
        branch: Branch = chosen.by_due[0] if chosen.is_due else chosen.by_rank[0]
        return branch

    def charge(self, branch: Branch) -> None:
        """A branch that waits is given what it asks for."""
        line = self._lines[branch.generation.namespace]
        self._served_last = max(self._served_last, line.served)
        self._give(line, len(branch.tokens))

    def give_back(self, branch: Branch) -> None:
        """It did not get it after all. A namespace of which nobody else waits has no account."""
        line = self._lines.get(branch.generation.namespace)
        if line is not None:
            self._give(line, -len(branch.tokens))

    def _give(self, line: _Line, num_tokens: int) -> None:
        self._leave(line)
        line.served += num_tokens
        self._enter(line)

    def _enter(self, line: _Line) -> None:
        self._by_rank.add(line)
        line.is_due = False
        self._by_first.add(line)

    def _leave(self, line: _Line) -> None:
        self._by_rank.remove(line)
        (self._due if line.is_due else self._by_first).remove(line)
