"""Clears of namespaces in all pools. Those that a pool has not confirmed are kept in the gateway's state, and repeated.

    clear ── a row for each pool ──> the book ── Clear, to all pools ──> confirmed: the row is removed; otherwise it is pending
    twice a second: pending rows ── no request of the namespace goes to such a pool ── Clear, again ──> confirmed: as above

Gateways over one database share the book. It names the pools that any of them has met, too, so that one that is away while a
gateway starts is not forgotten. A row whose pool never comes back goes after `KEPT_S`. A row of a whole service, whose pools
were not known, stays as long: each pool gets the clear when it is there, and then has a confirmed row.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from radixkv.client import RemoteReader
from radixkv.core.errors import LimitError, RadixKVError
from radixkv.core.namespaces import owner_of
from radixkv.gateway.backend.members import Members, PendingClear
from radixkv.gateway.backend.pools import CachePools, PoolName
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.util.fair_semaphore import own_work

__all__ = ["Cleared", "Clears"]

CLEAR_S = 6.0
"""How long a pool may take: a service waits 5 s for a worker that erases what it stores."""

LOOK_S = 0.5
"""How often the book is read."""

ASKED_S = 10.0
"""After so long without a mark, the gateway that wrote a row is gone."""

KEPT_S = 30 * 24 * 3600.0
MET_S = 24 * 3600.0
"""How often the book notes that a pool is there."""

MAX_KEPT = 1000
"""Rows of one tenant."""

_ASKED, _PENDING, _CONFIRMED = 0, 1, 2
"""States of rows: under way; not confirmed; confirmed by one pool, which the row of its service leaves out."""

_LOG = logging.getLogger(__name__)


class Cleared(NamedTuple):
    """Blocks that became free, by pool; and the pools that have not confirmed it yet, with an empty name all of a service."""

    by_pool: Mapping[PoolName, int]
    pending: list[PoolName]


class Clears:
    """The book of clears, from `open` to `aclose` on one event loop.

    Args:
        pools: the pools.
        members: leaves pools with pending clears out; None: there is one pool, which cannot answer without its service.
        run: runs a slow function on a thread.
    """

    def __init__(
        self,
        pools: CachePools,
        members: Members | None,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._pools = pools
        self._members = members
        self._run = run
        self._has_rows = True
        self._met: tuple[Sequence[PoolName], float] = ((), -math.inf)  # pools that the book has, and since when
        self._database: Database | None = None
        self._looking: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None

    async def open(self, database: Database) -> None:
        """Read the book, and repeat its pending clears from now on."""
        self._database = database
        if not database.is_shared:
            await database.run(_take_over)
        await self._look_safely()
        self._looking = asyncio.create_task(self._keep_looking(), name="radixkv-clears")

    async def clear(self, namespaces: Collection[str]) -> Cleared:
        """Clear namespaces of one owner in all pools; pools that do not confirm it now get it again later.

        Raises:
            LimitError: too many clears of this owner are pending.
            UnavailableError: the gateway's database does not answer; nothing is cleared.
            RadixKVError: a pool refuses it; others may have been cleared.
        """
        assert self._database is not None
        known = self._pools.known()
        pools, asked_s = await self._database.run(lambda connection: _ask(connection, known, namespaces))
        self._has_rows = True

        def clear(reader: RemoteReader) -> int:
            return sum(map(reader.clear, namespaces))

        try:
            answers = await self._run(partial(self._pools.ask, clear, CLEAR_S))
        except RadixKVError:
            await self._database.run(lambda connection: _settle(connection, pools, namespaces, asked_s))
            raise
        pending = [pool for pool in pools if not _has_confirmed(pool, answers.by_pool)]
        left = [pool for pool in pools if pool not in answers.by_pool]

        def settle(connection: Connection) -> None:
            _settle(connection, answers.by_pool, namespaces, asked_s)
            _mark(connection, left, namespaces)

        await self._database.run(settle)
        if left:
            await self._look()
            if self._database.is_shared:
                await asyncio.sleep(2 * LOOK_S)  # the other gateways have read it, too, before the caller is answered
        return Cleared(answers.by_pool, pending)

    async def aclose(self) -> None:
        """Stop. Pending clears stay in the book."""
        for task in (self._looking, self._repeating):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _keep_looking(self) -> None:
        assert self._database is not None
        while True:
            await asyncio.sleep(LOOK_S)
            await self._note_met()
            if self._has_rows or self._database.is_shared:
                await self._look_safely()

    async def _note_met(self) -> None:
        assert self._database is not None
        known, (met, noted_s) = self._pools.known(), self._met
        if known == met and time.monotonic() - noted_s < MET_S:
            return
        with suppress(RadixKVError):  # the database is away: the next look tries again
            await self._database.run(lambda connection: _note_met(connection, known))
            self._met = known, time.monotonic()

    async def _look_safely(self) -> None:
        try:
            await self._look()
        except RadixKVError as error:
            _LOG.error("pending clears are not known now: %s", error)

    async def _look(self) -> None:
        assert self._database is not None
        rows = await self._database.run(_read)
        self._has_rows = bool(rows)
        by_state = {
            state: {PendingClear(*row[:3]): row[3] for row in rows if row[4] == state}
            for state in (_PENDING, _CONFIRMED)
        }
        pending, confirmed = by_state[_PENDING], frozenset(by_state[_CONFIRMED])
        if self._members is not None:
            self._members.hold_back(frozenset(pending), confirmed)
        known = self._pools.known()
        is_due = any(each.pool or any(_is_due(each, pool, confirmed) for pool in known) for each in pending)
        if is_due and (self._repeating is None or self._repeating.done()):
            with own_work():
                self._repeating = asyncio.create_task(self._repeat(pending, confirmed), name="radixkv-clears-repeat")

    async def _repeat(self, pending: Mapping[PendingClear, float], confirmed: Collection[PendingClear]) -> None:
        assert self._database is not None

        def repeat(reader: RemoteReader) -> list[PendingClear]:
            pool = PoolName(reader.address, reader.pool_name)
            due = [each for each in pending if _is_due(each, pool, confirmed)]
            for namespace in {each.namespace for each in due}:
                reader.clear(namespace)
            return due

        services = {each.service for each in pending}
        try:
            answers = await self._run(partial(self._pools.ask, repeat, CLEAR_S, services))

            def settle(connection: Connection) -> None:
                for pool, cleared in answers.by_pool.items():
                    for each in cleared:
                        _settle(connection, [pool], [each.namespace], pending[each])

            if any(answers.by_pool.values()):
                await self._database.run(settle)
                await self._look()
        except RadixKVError as error:
            _LOG.warning("pending clears could not be repeated: %s", error)


def _has_confirmed(pool: PoolName, answered: Collection[PoolName]) -> bool:
    """Whether a pool is among those that answered; of a service whose pools were not known, whether any is."""
    return pool in answered or (not pool.pool and any(each.service == pool.service for each in answered))


def _is_due(clear: PendingClear, pool: PoolName, confirmed: Collection[PendingClear]) -> bool:
    """Whether a pool needs a clear: its own, or that of its service if it has not confirmed it yet."""
    if clear.service != pool.service:
        return False
    return clear.pool == pool.pool or (not clear.pool and PendingClear(*pool, clear.namespace) not in confirmed)


def _note_met(connection: Connection, pools: Iterable[PoolName]) -> None:
    connection.execute("DELETE FROM pools WHERE seen_s < epoch_s() - ?", (KEPT_S,))
    command = (
        "INSERT INTO pools VALUES (?, ?, epoch_s()) ON CONFLICT (service, pool) DO UPDATE SET seen_s = excluded.seen_s"
    )
    connection.executemany(command, [tuple(pool) for pool in pools if pool.pool])


def _ask(
    connection: Connection, known: Collection[PoolName], namespaces: Collection[str]
) -> tuple[list[PoolName], float]:
    """Write the rows of a clear for known pools and those of their services that the book has; returns both and its time."""
    services = {pool.service for pool in known}
    met = (PoolName(*row) for row in connection.execute("SELECT service, pool FROM pools").fetchall())
    pools = sorted({*known, *(pool for pool in met if pool.service in services)})
    owner = owner_of(next(iter(namespaces)))
    connection.execute("DELETE FROM clears WHERE asked_s < epoch_s() - ?", (KEPT_S,))
    query = "SELECT count(*) FROM clears WHERE owner = ? AND is_pending <> ?"
    num_kept = connection.execute(query, (owner, _CONFIRMED)).fetchone()[0]
    if num_kept >= MAX_KEPT:
        raise LimitError(
            f"{num_kept} clears of this namespace are pending for pools that cannot be reached; clear all of it later"
        )
    now_s = connection.execute("SELECT epoch_s()").fetchone()[0]
    again = "UPDATE clears SET is_pending = ?, asked_s = ? WHERE namespace = ? AND is_pending = ?"
    connection.executemany(again, [(_PENDING, now_s, namespace, _CONFIRMED) for namespace in namespaces])
    command = (
        f"INSERT INTO clears VALUES (?, ?, ?, ?, ?, {_ASKED}) "
        "ON CONFLICT (service, pool, namespace) DO UPDATE SET asked_s = excluded.asked_s"
    )
    connection.executemany(command, [(*pool, namespace, owner, now_s) for pool in pools for namespace in namespaces])
    return pools, float(now_s)


def _settle(connection: Connection, pools: Iterable[PoolName], namespaces: Iterable[str], asked_s: float) -> None:
    """Remove the rows of pools, except those of a later clear; where their service has a row, they get a confirmed one."""
    for pool in pools:
        for namespace in namespaces:
            connection.execute(_REMOVE, (*pool, namespace, asked_s))
            if pool.pool:
                connection.execute(_CONFIRM, (pool.pool, asked_s, _CONFIRMED, pool.service, namespace))


_REMOVE = "DELETE FROM clears WHERE service = ? AND pool = ? AND namespace = ? AND asked_s <= ?"
_CONFIRM = """
INSERT INTO clears SELECT service, ?, namespace, owner, ?, ? FROM clears WHERE service = ? AND pool = '' AND namespace = ?
ON CONFLICT (service, pool, namespace) DO NOTHING
"""


def _take_over(connection: Connection) -> None:
    """A file's only gateway ends clears that were under way."""
    connection.execute("UPDATE clears SET is_pending = ? WHERE is_pending = ?", (_PENDING, _ASKED))


def _mark(connection: Connection, pools: Iterable[PoolName], namespaces: Iterable[str]) -> None:
    command = "UPDATE clears SET is_pending = ? WHERE service = ? AND pool = ? AND namespace = ?"
    connection.executemany(command, [(_PENDING, *pool, namespace) for pool in pools for namespace in namespaces])


def _read(connection: Connection) -> list[tuple[Any, ...]]:
    """All rows: service, pool, namespace, time and state; pending is what another gateway has not ended in time, too."""
    query = "SELECT service, pool, namespace, asked_s, is_pending, epoch_s() - asked_s FROM clears"
    return [(*row[:4], row[4] or _PENDING * (row[5] > ASKED_S)) for row in map(tuple, connection.execute(query))]
