"""What must never be matched any more: all that a worker had of a namespace when it was cleared.

Each slot of a worker's memory, and each of its branches, is marked when its namespace is cleared, and so is what a marked
branch computes later. A clear of which the holder has not heard when the service dies is lost with it, and its marks are taken
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from radixkv.core.api import ClearOp
from radixkv.service.pools.table import Pool

from .processes.branches import Branch

if TYPE_CHECKING:
    from .processes.worker import SimulatedWorker

__all__ = ["Clears", "unheard"]


def unheard(pool: Pool) -> Counter[str]:
    """Namespaces that were cleared, as far as it is not sure that the holder knows it, and how often it is to be told."""
    waiting = (entry.namespace for entry in pool.cache.journal._entries if isinstance(entry, ClearOp))
    return Counter([*waiting, *(name for kept in pool.notices for name in kept.notices.cleared)])


class Clears:
    """The marks in the memories of these workers."""

    def __init__(self, workers: Sequence[SimulatedWorker]) -> None:
        self._workers = workers
        self._cleared: dict[
            Pool, set[str]
        ] = {}  # what this life of the service has cleared, in pools that have ended too

    def cleared(self, pool: Pool, namespace: str) -> None:
        """A namespace of a pool was cleared, just now."""
        self._cleared.setdefault(pool, set()).add(namespace)
        worker = self._holder(pool)
        if worker is None:
            return
        opened = set(pool.cache._sequences) | _known_open(worker)
        for branch in _branches(worker):
            if branch.seq_id in opened and branch.request.domain == namespace:
                branch.is_cleared = True
        memory = worker.memory
        memory.cleared |= {slot for slot, domain in enumerate(memory.domains) if domain == namespace}

    def lost(self, table: Mapping[str, Pool]) -> None:
        """The service dies: sequences of which the holder has not heard will be opened anew."""
        for pool, cleared in self._cleared.items():
            worker = self._holder(pool)
            if worker is None:
                continue
            known, memory = _known_open(worker), worker.memory
            forgotten = unheard(pool) if table.get(pool.shape.name) is pool else cleared
            for branch in _branches(worker):
                if branch.seq_id not in known or branch.request.domain in forgotten:
                    branch.is_cleared = False
            memory.cleared -= {slot for slot in memory.cleared if memory.domains[slot] in forgotten}
        self._cleared.clear()

    def _holder(self, pool: Pool) -> SimulatedWorker | None:
        holders = (
            worker for worker in self._workers if worker.incarnation == pool.incarnation and worker.process.is_up
        )
        return next(holders, None)


def _branches(worker: SimulatedWorker) -> Iterator[Branch]:
    return (branch for job in worker.jobs for branch in job.branches)


def _known_open(worker: SimulatedWorker) -> set[int]:
    """Sequences whose opening the holder was answered."""
    ledger = worker.holder.session._ledger if worker.holder is not None else None
    return set(ledger._open) if ledger is not None else set()
