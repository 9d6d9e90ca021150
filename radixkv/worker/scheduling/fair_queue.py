"""Turns between owners: owners that wait for the same place share it by the tokens that they were served.

    owner a   ──[due first][then by rank]──┐   served  4,200
    owner b   ──[due first][then by rank]──┼─> 1,900   <- the least served goes first
    owner c   ──[due first][then by rank]──┘           7,000

So a thousand requests of one owner delay another owner's request by one of them at most, whatever priorities and times they
name: these order the requests of one owner. An owner that joins starts at the count of the last one served: its absence earns
no credit, and earlier service counts until others have been served as much.

Source: P. Goyal, H. M. Vin and H. Cheng, "Start-time fair queueing", SIGCOMM 1996.
"""

from __future__ import annotations

from collections.abc import Collection

from sortedcontainers import SortedKeyList, SortedList

from radixkv.worker.generations.branch import Branch

__all__ = ["FairQueue"]

MAX_ACCOUNTS = 4096
"""Accounts kept of owners that do not wait; above it the least served is dropped."""


class _Line:
    """Branches of one owner. `served`: tokens served so far, on the common scale."""

    __slots__ = ("by_due", "by_rank", "owner", "served")

    def __init__(self, owner: str, served: int) -> None:
        self.by_due: SortedKeyList = SortedKeyList(key=lambda branch: (branch.due_s, branch.order))
        self.by_rank: SortedKeyList = SortedKeyList(
            key=lambda branch: (-branch.priority, -branch.num_matched, branch.order)
        )
        self.owner = owner
        self.served = served

    def head(self, now_s: float) -> Branch:
        first: Branch = self.by_due[0]
        if first.due_s > now_s:
            first = self.by_rank[0]
        return first


class FairQueue:
    """Waiting branches, in one line per owner. O(log n) per call, amortised."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._by_served: SortedKeyList = SortedKeyList(key=lambda line: (line.served, line.by_due[0].order))
        self._left: dict[str, int] = {}  # served tokens of owners without a line, where above `_served_last`
        self._left_by_served: SortedList = SortedList()
        self._num_branches = 0
        self._served_last = 0

    def __len__(self) -> int:
        return self._num_branches

    def branches(self) -> list[Branch]:
        """All branches, each line in order of due time."""
        return [branch for line in self._lines.values() for branch in line.by_due]

    def add(self, branch: Branch) -> None:
        """Append a branch."""
        line = self._lines.get(branch.owner)
        if line is None:
            line = self._lines[branch.owner] = _Line(branch.owner, self._forget(branch.owner))
        else:
            self._by_served.remove(line)
        line.by_due.add(branch)
        line.by_rank.add(branch)
        self._num_branches += 1
        self._by_served.add(line)

    def discard(self, branch: Branch) -> None:
        """Remove a branch."""
        line = self._lines[branch.owner]
        self._by_served.remove(line)
        line.by_due.remove(branch)
        line.by_rank.remove(branch)
        self._num_branches -= 1
        if line.by_due:
            self._by_served.add(line)
        else:
            del self._lines[branch.owner]
            self._remember(branch.owner, line.served)

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """Set how many tokens of its history are cached now, which changes its rank."""
        by_rank = self._lines[branch.owner].by_rank
        by_rank.remove(branch)
        branch.num_matched = num_tokens
        by_rank.add(branch)

    def head(self, now_s: float, passed: Collection[str] = ()) -> Branch | None:
        """Next branch, of the least served owner not in `passed`: the one due first, otherwise the first by rank.

        O(passed).
        """
        for line in self._by_served:
            if line.owner not in passed:
                first: Branch = line.head(now_s)
                return first
        return None

    def served(self, owner: str) -> int:
        """Tokens that an owner was served, on the common scale."""
        line = self._lines.get(owner)
        return line.served if line is not None else self._left.get(owner, self._served_last)

    def charge(self, branch: Branch) -> None:
        """Charge an owner for a branch's tokens."""
        self._served_last = max(self._served_last, self.served(branch.owner))
        self._give(branch.owner, len(branch.tokens))
        while self._left_by_served and self._left_by_served[0][0] <= self._served_last:
            del self._left[self._left_by_served.pop(0)[1]]

    def give_back(self, branch: Branch) -> None:
        """Undo `charge`: the branch was refused."""
        self._give(branch.owner, -len(branch.tokens))

    def _give(self, owner: str, num_tokens: int) -> None:
        line = self._lines.get(owner)
        if line is None:
            self._remember(owner, self._forget(owner) + num_tokens)
        else:
            self._by_served.remove(line)
            line.served += num_tokens
            self._by_served.add(line)

    def _remember(self, owner: str, served: int) -> None:
        if served > self._served_last:
            self._left[owner] = served
            self._left_by_served.add((served, owner))
            if len(self._left) > MAX_ACCOUNTS:
                del self._left[self._left_by_served.pop(0)[1]]

    def _forget(self, owner: str) -> int:
        """Drop the account of an owner without a line. Returns its served tokens."""
        served = self._left.pop(owner, None)
        if served is None:
            return self._served_last
        self._left_by_served.remove((served, owner))
        return served
