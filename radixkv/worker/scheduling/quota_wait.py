"""Namespaces that are at their quota: who of them waits, so that the others never notice.

Who is refused for its namespace's quota waits for that namespace alone: until one of its branches has finished or given its
blocks up. A few are tried each time, the most wanted first; the rest stay behind them and cost nothing. Once one that was
refused is due, nobody of its namespace is tried before it. Of other namespaces nobody is held up.
"""

from __future__ import annotations

from collections.abc import Callable

from sortedcontainers import SortedKeyList

from radixkv.worker.generations.branch import Branch, Phase

__all__ = ["QuotaWaiters"]

_MAX_TRIED = 4
"""Branches of one namespace that are tried each time something of it was freed or admitted."""


def _rank(branch: Branch) -> tuple[int, tuple[int, int]]:
    return -branch.priority, branch.order


class _Tenant:
    """`refused`: those refused since something was last freed. `retried`: those refused before, which may be tried again since.
    `behind`: those not tried. `is_recovering`: one of its branches gave way to another, so nobody is to be admitted until one
    has finished.
    """

    __slots__ = ("behind", "is_recovering", "refused", "retried")

    def __init__(self) -> None:
        self.refused: list[Branch] = []
        self.retried: list[Branch] = []
        self.behind: SortedKeyList = SortedKeyList(key=_rank)
        self.is_recovering = False

    def first_due(self, now_s: float) -> Branch | None:
        """Of those that were refused and do not run yet the one that is due first; None if none is due."""
        waiting = (branch for branch in self.retried if branch.phase in {Phase.QUEUED, Phase.OPENING})
        due = [branch for branch in (*self.refused, *waiting) if branch.due_s <= now_s]
        return min(due, key=lambda branch: (branch.due_s, branch.order), default=None)

    def is_stopped_for(self, branch: Branch, now_s: float) -> bool:
        """Whether a branch has to let others of the namespace go first, or wait until something was freed."""
        first = self.first_due(now_s)
        if self.is_recovering or first is not None:
            return self.is_recovering or first is not branch
        is_behind = bool(self.behind) and _rank(branch) > _rank(self.behind[0])
        return branch not in self.retried and (is_behind or len(self.refused) >= _MAX_TRIED)


class QuotaWaiters:
    """Branches that wait for their own owner's quota. O(log waiting) per branch that comes or goes.

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
        """Those that somebody waits for."""
        return [owner for owner, tenant in self._tenants.items() if tenant.refused or tenant.behind]

    def refused(self, branch: Branch) -> None:
        """Its namespace's quota left too little for it."""
        self._waiting.add(branch)
        self._tenants.setdefault(branch.owner, _Tenant()).refused.append(branch)

    def holds_back(self, branch: Branch, now_s: float) -> bool:
        """Whether a queued branch is not to be tried now; it then waits behind those of its namespace."""
        tenant = self._tenants.get(branch.owner)
        if tenant is None:
            return False
        if not tenant.is_stopped_for(branch, now_s):
            return False
        self._waiting.add(branch)
        if branch in tenant.retried:
            tenant.refused.append(branch)
        else:
            tenant.behind.add(branch)
        return True

    def discard(self, branch: Branch) -> None:
        """It waits no longer."""
        self._waiting.discard(branch)
        tenant = self._tenants[branch.owner]
        if branch in tenant.refused:
            tenant.refused.remove(branch)
        else:
            tenant.behind.remove(branch)

    def admitted(self, owner: str) -> None:
        """One of its branches was opened: the next may fit too."""
        tenant = self._tenants.get(owner)
        if tenant is not None:
            self._try_next(tenant)

    def gave_way(self, owner: str) -> None:
        """One of its branches gave its blocks up to another: admit nobody until one has finished."""
        self._tenants.setdefault(owner, _Tenant()).is_recovering = True

    def freed(self, owner: str) -> None:
        """One of its branches holds nothing any more: whoever waits for that may be tried."""
        tenant = self._tenants.get(owner)
        if tenant is None:
            return
        tenant.is_recovering = False
        tenant.retried, tenant.refused = tenant.refused, []
        for branch in tenant.retried:
            self._waiting.discard(branch)
            self._bring_back(branch)
        self._try_next(tenant)
        if not (tenant.behind or tenant.retried):
            del self._tenants[owner]

    def _try_next(self, tenant: _Tenant) -> None:
        for _ in range(min(_MAX_TRIED, len(tenant.behind))):
            branch = tenant.behind.pop(0)
            self._waiting.discard(branch)
            self._bring_back(branch)
