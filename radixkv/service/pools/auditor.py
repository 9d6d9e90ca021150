"""Audits: the invariants of every pool are verified continuously, in slices of a millisecond.

A pool that violates one is dropped at once, since a block in use could be allocated twice. Its holder restarts with an empty
pool and recomputes the running sequences. That is slower, and never a wrong token.
"""

from __future__ import annotations

import asyncio
import logging

from radixkv.core.errors import CorruptionError, LeaseError
from radixkv.service.pools.table import Pool, PoolTable

__all__ = ["Auditor"]

_REST = 50
"""A slice is followed by a pause of so many times its own length."""

_log = logging.getLogger(__name__)


class Auditor:
    """Passes over all pools, on the event loop that owns them.

    Args:
        pools: the pool table.
        interval_s: pause between two passes.
    """

    def __init__(self, pools: PoolTable, interval_s: float) -> None:
        self._pools = pools
        self._interval_s = interval_s

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            for pool in self._pools.select(""):
                await self._audit(pool)

    async def _audit(self, pool: Pool) -> None:
        loop, audit = asyncio.get_running_loop(), pool.cache.audit()
        while self._pools.holds(pool) and not audit.is_done:
            start_s = loop.time()
            try:
                audit.take()
            except CorruptionError as error:
                self._drop(pool, error)
                return
            await asyncio.sleep(_REST * (loop.time() - start_s))
        pool.num_audits += audit.is_done

    def _drop(self, pool: Pool, error: CorruptionError) -> None:
        name = pool.shape.name
        _log.critical("the books of pool %r are wrong, so it is dropped; please report this: %s", name, error)
        message = f"the books of pool {name!r} are wrong, so the service has dropped it; attach with a new incarnation"
        self._pools.end(pool, LeaseError(message))
