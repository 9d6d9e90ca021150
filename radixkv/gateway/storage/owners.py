"""Which gateway writes what is under way: a name in its row, and a lease of the gateway.

    gateways: id, seen_s      renewed every BEAT_S, on the database's clock
              flush           the last of its bills, see `billing`
    responses, messages,      owner: a gateway's id; once its lease ends, any other
    files, batches            gateway ends what it left unfinished

A file's only gateway ends at its start what others left.
"""

from __future__ import annotations

from typing import NamedTuple

from radixkv.gateway.storage.connection import Connection

__all__ = ["BEAT_S", "LEASE_S", "LOST", "MAX_TAKEN", "TAKEABLE", "Lost", "beat", "is_flushed", "num_gateways"]

LEASE_S = 10.0
"""After so many seconds without a sign of life a gateway counts as gone."""

BEAT_S = 2.0

MAX_TAKEN = 16
"""Lost responses, and replies, that a gateway takes over at a time."""

_FORGOTTEN_S = 3600.0
_LIVING = f"SELECT id FROM gateways WHERE seen_s > epoch_s() - {LEASE_S}"

LOST = f"(owner IS NULL OR owner NOT IN ({_LIVING}))"
"""Condition of a row whose gateway is gone."""

TAKEABLE = f"((owner IS NULL OR owner <> ?) AND {LOST})"
"""Condition of a lost row that the gateway of this id may take over: its own it writes itself."""


class Lost(NamedTuple):
    """A response, or replies, that a gateway left unfinished.

    key: its id; of replies, their request. request: JSON with tenant, path and body.
    """

    key: str
    namespace: str
    request: str


def beat(connection: Connection, owner: str) -> None:
    """Renew the lease of a gateway."""
    query = "INSERT INTO gateways (id, seen_s) VALUES (?, epoch_s()) ON CONFLICT (id) DO UPDATE SET seen_s = excluded.seen_s"
    connection.execute(query, (owner,))


def is_flushed(connection: Connection, owner: str, flush: str) -> bool:
    """Whether a gateway's last committed flush of its bills is this one, which it is once this transaction commits."""
    query = (
        "INSERT INTO gateways (id, seen_s, flush) VALUES (?, epoch_s(), ?) ON CONFLICT (id) DO UPDATE "
        "SET flush = excluded.flush WHERE gateways.flush IS NULL OR gateways.flush <> excluded.flush"
    )
    return connection.execute(query, (owner, flush)).rowcount == 0


def num_gateways(connection: Connection) -> int:
    """Return the number of gateways with a lease; forgets those that are long gone."""
    connection.execute("DELETE FROM gateways WHERE seen_s < epoch_s() - ?", (_FORGOTTEN_S,))
    return int(connection.execute(f"SELECT count(*) FROM ({_LIVING}) AS living").fetchone()[0])
