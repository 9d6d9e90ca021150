"""The use of each namespace, for billing: tokens, their cost, and tokens held in the cache times seconds.

Sums since a namespace was first seen, kept in the state file: a bill is the difference of two readings. Tokens are those of
requests to this gateway, counted as their events come, also where a client leaves before the end. Held tokens are read from the
cache service, which counts them whichever way they were computed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from radixkv.core.api import NamespaceUsage
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import is_flushed
from radixkv.generation.prices import Prices

__all__ = ["Bill", "BillingBook"]

_SUMS = ("num_requests", "num_computed_tokens", "num_found_tokens", "num_generated_tokens", "held_token_s", "cost")


class Bill(NamedTuple):
    """The sums of one namespace.

    num_requests: generations begun. num_computed_tokens, num_found_tokens: of their prompts. num_generated_tokens: of all
    branches. held_token_s: tokens of the blocks that it owned times seconds. cost: of all that, by the prices at the time.
    """

    namespace: str
    num_requests: int = 0
    num_computed_tokens: int = 0
    num_found_tokens: int = 0
    num_generated_tokens: int = 0
    held_token_s: float = 0.0
    cost: float = 0.0


class _Flush(NamedTuple):
    """Sums on their way into the database, by namespace."""

    name: str
    bills: Mapping[str, Bill]


class BillingBook:
    """The sums of all namespaces. A killed process loses those not flushed. One event loop uses it."""

    def __init__(self) -> None:
        self._database: Database | None = None
        self._new: dict[str, Bill] = {}
        self._flush: _Flush | None = None  # not known to be committed
        self._holding: dict[str, set[str]] = {}  # by pool

    def open(self, database: Database) -> None:
        """Store the sums there from now on."""
        self._database = database

    def count(
        self,
        namespace: str,
        prices: Prices | None,
        *,
        num_requests: int = 0,
        num_computed: int = 0,
        num_found: int = 0,
        num_generated: int = 0,
    ) -> None:
        """Add to the sums of a namespace; numbers below 0 correct earlier ones. O(1)."""
        cost = 0.0 if prices is None else prices.cost(num_computed + num_found, num_found, num_generated)
        added = Bill(namespace, num_requests, num_computed, num_found, num_generated, 0.0, cost)
        before = self._new.get(namespace)
        self._new[namespace] = added if before is None else _sum(before, added)

    async def flush(self) -> None:
        """Store what has been counted, once: a flush whose commit was not answered is repeated under its name. A cancelled call
        stores it all the same.

        Raises:
            Exception: it cannot be stored, and is part of the next call.
        """
        while self._database is not None and (self._flush is not None or self._new):
            if self._flush is None:
                self._flush, self._new = _Flush(uuid.uuid4().hex, self._new), {}
            flush, owner = self._flush, self._database.owner
            await asyncio.shield(asyncio.wrap_future(self._database.submit(partial(_store, flush=flush, owner=owner))))
            if self._flush is flush:
                self._flush = None

    async def hold(self, pool: str, usages: Iterable[NamespaceUsage], block_size: int, prices: Prices | None) -> None:
        """Add what namespaces have held in a pool since the last time, by its counters.

        A counter begins at 0 again where the service was restarted or the worker has a new pool: then it is less than half of
        the last reading. Between the two it is a reading that comes late, and adds nothing.
        """
        assert self._database is not None
        held = {usage.namespace: usage.held_block_s for usage in usages}
        self._holding[pool] = {usage.namespace for usage in usages if usage.num_blocks}
        await self._database.run(lambda connection: _hold(connection, pool, held, block_size, prices))

    def left_out(self, pool: str, usages: Iterable[NamespaceUsage]) -> set[str]:
        """Namespaces that held blocks the last time and are not in `usages` now: they have to be asked for by name."""
        return self._holding.get(pool, set()) - {usage.namespace for usage in usages}

    async def read(self, namespace: str, *, of_all: bool = False) -> list[Bill]:
        """The sums of a namespace, or of all by name; none of one that has used nothing."""
        await self.flush()
        assert self._database is not None
        query = f"SELECT namespace, {', '.join(_SUMS)} FROM billing"
        where, values = ("ORDER BY namespace", ()) if of_all else ("WHERE namespace = ?", (namespace,))
        return await self._database.read(
            lambda connection: [Bill(*row) for row in connection.execute(f"{query} {where}", values)], namespace
        )


def _sum(one: Bill, other: Bill) -> Bill:
    return Bill._make((one.namespace, *(a + b for a, b in zip(one[1:], other[1:], strict=True))))


def _store(connection: Connection, flush: _Flush, owner: str) -> None:
    if not is_flushed(connection, owner, flush.name):
        _add(connection, flush.bills.values())


def _add(connection: Connection, bills: Iterable[Bill]) -> None:
    sums = ", ".join(f"{name} = billing.{name} + excluded.{name}" for name in _SUMS)
    names = ", ".join(("namespace", *_SUMS))
    command = f"INSERT INTO billing ({names}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace) DO UPDATE SET {sums}"
    for bill in bills:
        connection.execute(command, tuple(bill))


def _hold(connection: Connection, pool: str, held: Mapping[str, float], block_size: int, prices: Prices | None) -> None:
    query = "SELECT seen FROM held WHERE pool = ? AND namespace = ?"
    for namespace, now in held.items():
        row = connection.execute(query, (pool, namespace)).fetchone()
        if row is None:  # a counter that goes on from that of an earlier version
            values = (pool, namespace, now)
            connection.execute("UPDATE held SET pool = ? WHERE pool = '' AND namespace = ? AND seen <= ?", values)
            row = connection.execute(query, (pool, namespace)).fetchone()
        seen = row[0] if row is not None else 0.0
        if now == seen or seen / 2 < now < seen:
            continue
        token_s = (now - seen if now > seen else now) * block_size
        cost = 0.0 if prices is None else prices.held_cost(token_s)
        _add(connection, [Bill(namespace, held_token_s=token_s, cost=cost)])
        command = "INSERT INTO held VALUES (?, ?, ?) ON CONFLICT (pool, namespace) DO UPDATE SET seen = excluded.seen"
        connection.execute(command, (pool, namespace, now))
