"""Clears of namespaces in all pools: what a pool could not be told is kept in the gateway's state, and told later.

    clear ── a row for each pool ──> the book ── Clear, to all pools ──> told: its row goes; not told: it stays, marked
    twice a second: marked rows ── no request of the namespace goes to that pool, until it is told and the row goes

Gateways over one database share the book. A row whose pool never comes back goes after `KEPT_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from radixkv.client import RemoteReader
from radixkv.core.errors import LimitError, RadixKVError
from radixkv.core.namespaces import owner_of
from radixkv.gateway.backend.members import Members, Untold
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
MAX_KEPT = 1000
"""Rows of one tenant."""

_LOG = logging.getLogger(__name__)


class Cleared(NamedTuple):
    """Blocks that became free, by pool; and the pools that are told later, with an empty name all of a service."""

    by_pool: Mapping[PoolName, int]
    kept: list[PoolName]


class Clears:
    """The book of clears, from `open` to `aclose` on one event loop.

    Args:
        pools: the pools.
        members: names to no request a pool that is untold; None: there is one pool, which cannot answer without its service.
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
        self._database: Database | None = None
        self._looking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    async def open(self, database: Database) -> None:
        """Read the book, and tell what is in it from now on."""
        self._database = database
        if not database.is_shared:
            await database.run(lambda connection: connection.execute("UPDATE clears SET is_untold = 1"))
        await self._look_safely()
        self._looking = asyncio.create_task(self._keep_looking(), name="radixkv-clears")

    async def clear(self, namespaces: Collection[str]) -> Cleared:
        """Clear namespaces of one owner in all pools; those that cannot be told now are told later.

        Raises:
            LimitError: too many clears of this owner wait.
            UnavailableError: the gateway's database does not answer; nothing is cleared.
            RadixKVError: a pool refuses it; others may have been cleared.
        """
        assert self._database is not None
        pools = self._pools.known()
        asked_s = await self._database.run(lambda connection: _ask(connection, pools, namespaces))
        self._has_rows = True

        def clear(reader: RemoteReader) -> int:
            return sum(map(reader.clear, namespaces))

        try:
            answers = await self._run(partial(self._pools.ask, clear, CLEAR_S))
        except RadixKVError:
            await self._database.run(lambda connection: _settle(connection, pools, namespaces, asked_s))
            raise
        told = [pool for pool in pools if _is_told(pool, answers.by_pool)]
        kept = [pool for pool in pools if pool not in told]

        def settle(connection: Connection) -> None:
            _settle(connection, told, namespaces, asked_s)
            _mark(connection, kept, namespaces)

        await self._database.run(settle)
        if kept:
            await self._look()
            if self._database.is_shared:
                await asyncio.sleep(2 * LOOK_S)  # the other gateways have read it, too, before the caller is answered
        return Cleared(answers.by_pool, kept)

    async def aclose(self) -> None:
        """Stop. What is untold stays in the book."""
        for task in (self._looking, self._telling):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _keep_looking(self) -> None:
        assert self._database is not None
        while True:
            await asyncio.sleep(LOOK_S)
            if self._has_rows or self._database.is_shared:
                await self._look_safely()

    async def _look_safely(self) -> None:
        try:
            await self._look()
        except RadixKVError as error:
            _LOG.error("clears that wait are not known now: %s", error)

    async def _look(self) -> None:
        assert self._database is not None
        rows = await self._database.run(_read)
        self._has_rows = bool(rows)
        untold = {Untold(*row[:3]): row[3] for row in rows if row[4]}
        if self._members is not None:
            self._members.hold_back(frozenset(untold))
        if untold and (self._telling is None or self._telling.done()):
            with own_work():
                self._telling = asyncio.create_task(self._tell(untold), name="radixkv-clears-tell")

    async def _tell(self, untold: Mapping[Untold, float]) -> None:
        assert self._database is not None

        def tell(reader: RemoteReader) -> list[Untold]:
            service, pool = reader.address, reader.pool_name
            told = [each for each in untold if each.service == service and each.pool in ("", pool)]
            for each in told:
                reader.clear(each.namespace)
            return told

        services = {each.service for each in untold}
        try:
            answers = await self._run(partial(self._pools.ask, tell, CLEAR_S, services))
            told = {each for one in answers.by_pool.values() for each in one}

            def settle(connection: Connection) -> None:
                for each in told:
                    _settle(connection, [PoolName(*each[:2])], [each.namespace], untold[each])

            if told:
                await self._database.run(settle)
                await self._look()
        except RadixKVError as error:
            _LOG.warning("clears that wait could not be told: %s", error)


def _is_told(pool: PoolName, answered: Collection[PoolName]) -> bool:
    """Whether a pool is among those that answered; of a service whose pools were not known, whether any is."""
    return pool in answered or (not pool.pool and any(each.service == pool.service for each in answered))


def _ask(connection: Connection, pools: Iterable[PoolName], namespaces: Collection[str]) -> float:
    """Write the rows of a clear; returns its time."""
    owner = owner_of(next(iter(namespaces)))
    connection.execute("DELETE FROM clears WHERE asked_s < epoch_s() - ?", (KEPT_S,))
    num_kept = connection.execute("SELECT count(*) FROM clears WHERE owner = ?", (owner,)).fetchone()[0]
    if num_kept >= MAX_KEPT:
        raise LimitError(
            f"{num_kept} clears of this namespace wait for pools that cannot be reached; clear all of it later"
        )
    now_s = connection.execute("SELECT epoch_s()").fetchone()[0]
    command = (
        "INSERT INTO clears VALUES (?, ?, ?, ?, ?, 0) "
        "ON CONFLICT (service, pool, namespace) DO UPDATE SET asked_s = excluded.asked_s"
    )
    connection.executemany(command, [(*pool, namespace, owner, now_s) for pool in pools for namespace in namespaces])
    return float(now_s)


def _settle(connection: Connection, pools: Iterable[PoolName], namespaces: Iterable[str], asked_s: float) -> None:
    """Remove what was told, unless it was asked for again meanwhile."""
    command = "DELETE FROM clears WHERE service = ? AND pool = ? AND namespace = ? AND asked_s <= ?"
    connection.executemany(command, [(*pool, namespace, asked_s) for pool in pools for namespace in namespaces])


def _mark(connection: Connection, pools: Iterable[PoolName], namespaces: Iterable[str]) -> None:
    command = "UPDATE clears SET is_untold = 1 WHERE service = ? AND pool = ? AND namespace = ?"
    connection.executemany(command, [(*pool, namespace) for pool in pools for namespace in namespaces])


def _read(connection: Connection) -> list[tuple[Any, ...]]:
    """All rows: service, pool, namespace, time, and whether they are untold."""
    query = "SELECT service, pool, namespace, asked_s, is_untold, epoch_s() - asked_s FROM clears"
    return [(*row[:4], bool(row[4]) or row[5] > ASKED_S) for row in map(tuple, connection.execute(query))]
