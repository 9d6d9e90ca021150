"""Branches of namespaces at their quota, which wait without delaying other namespaces.

A branch refused by its namespace's quota waits for that namespace alone: until one of its branches has finished or was
preempted. A few branches are tried each time, the most wanted first; the rest wait at no cost. Once a refused branch is due, no
other branch of its namespace is tried before it.
"""

from __future__ import annotations

from collections.abc import Callable

from sortedcontainers import SortedKeyList

from radixkv.worker.generations.branch import Branch, Phase

__all__ = ["QuotaWaiters"]

_MAX_TRIED = 4
"""Branches of one namespace tried each time one of its branches is freed or admitted."""


def _rank(branch: Branch) -> tuple[int, tuple[int, int]]:
    return -branch.priority, branch.order


class _Tenant:
    """`refused`: branches refused since blocks were last freed. `retried`: branches refused before, which may be tried again.
    `untried`: the others. `is_recovering`: one of its branches was preempted for another, so none is admitted until one
    has finished.
    """

    __slots__ = ("is_recovering", "refused", "retried", "untried")

    def __init__(self) -> None:
        self.refused: list[Branch] = []
        self.retried: list[Branch] = []
        self.untried: SortedKeyList = SortedKeyList(key=_rank)
        self.is_recovering = False

    def first_due(self, now_s: float) -> Branch | None:
        """The refused, not running branch that is due first; None if none is due."""
        waiting = (branch for branch in self.retried if branch.phase in {Phase.QUEUED, Phase.OPENING})
        due = [branch for branch in (*self.refused, *waiting) if branch.due_s <= now_s]
        return min(due, key=lambda branch: (branch.due_s, branch.order), default=None)

    def is_stopped_for(self, branch: Branch, now_s: float) -> bool:
        """Whether a branch has to let others of the namespace go first, or wait until blocks are freed."""
        first = self.first_due(now_s)
        if self.is_recovering or first is not None:
            return self.is_recovering or first is not branch
        ranks_later = bool(self.untried) and _rank(branch) > _rank(self.untried[0])
        return branch not in self.retried and (ranks_later or len(self.refused) >= _MAX_TRIED)


class QuotaWaiters:
    """Branches that wait for their own owner's quota. O(log waiting) per branch added or removed.

    Args:
        bring_back: queues a branch that may be tried (again).
    """

    def __init__(self, bring_back: Callable[[Branch], None]) -> None:
        self._bring_back = bring_back
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: set[Branch] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, branch: Branch) -> bool:
        return branch in self._waiting

    def owners(self) -> list[str]:
        """Owners with waiting branches, or of which none is admitted until one has finished."""
        return [
            owner for owner, tenant in self._tenants.items() if tenant.refused or tenant.untried or tenant.is_recovering
        ]

    def refused(self, branch: Branch) -> None:
        """Add a branch refused by its namespace's quota."""
        self._waiting.add(branch)
        self._tenants.setdefault(branch.owner, _Tenant()).refused.append(branch)

    def holds_back(self, branch: Branch, now_s: float) -> bool:
        """Whether a queued branch may not be tried now; it then waits after the others of its namespace."""
        tenant = self._tenants.get(branch.owner)
        if tenant is None:
            return False
        if not tenant.is_stopped_for(branch, now_s):
            return False
        self._waiting.add(branch)
        if branch in tenant.retried:
            tenant.refused.append(branch)
        else:
            tenant.untried.add(branch)
        return True

    def discard(self, branch: Branch) -> None:
        """Remove a branch."""
        self._waiting.discard(branch)
        tenant = self._tenants[branch.owner]
        if branch in tenant.refused:
            tenant.refused.remove(branch)
        else:
            tenant.untried.remove(branch)

    def admitted(self, owner: str) -> None:
        """A branch of this owner was opened: the next may fit too."""
        tenant = self._tenants.get(owner)
        if tenant is not None:
            self._try_next(tenant)

    def gave_way(self, owner: str) -> None:
        """A branch of this owner was preempted for another: admit none until one has finished."""
        self._tenants.setdefault(owner, _Tenant()).is_recovering = True

    def freed(self, owner: str) -> None:
        """A branch of this owner no longer holds blocks: refused branches may be retried."""
        tenant = self._tenants.get(owner)
        if tenant is None:
            return
        tenant.is_recovering = False
        tenant.retried, tenant.refused = tenant.refused, []
        for branch in tenant.retried:
            self._waiting.discard(branch)
            self._bring_back(branch)
        self._try_next(tenant)
        if not (tenant.untried or tenant.retried):
            del self._tenants[owner]

    def _try_next(self, tenant: _Tenant) -> None:
        for _ in range(min(_MAX_TRIED, len(tenant.untried))):
            branch = tenant.untried.pop(0)
            self._waiting.discard(branch)
            self._bring_back(branch)
