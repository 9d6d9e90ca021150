"""Tombstones on the remote level, and the deletion of an erased namespace's blocks.

A tombstone is left before anything is deleted, so that a worker that was away erases too. Tombstones that a flush or an
eviction lost are put back by every worker that has seen them. The server is not trusted: the owner of the key file checks
a tombstone before it acts on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from radixkv.stores.remote.cluster import Servers
from radixkv.stores.remote.wire import ProtocolError, Reply, ReplyError, WireError
from radixkv.stores.stats import LevelCounters

__all__ = ["CALL_TIMEOUT_S", "MAX_TOMBSTONE_BYTES", "Erasures"]

CALL_TIMEOUT_S = 2.0
REFRESH_TIMEOUT_S = 20.0
MAX_TOMBSTONES = 100_000
MAX_TOMBSTONE_BYTES = 64
MAX_PENDING = 10_000
_PAGE = 1000
_KEY = b"radixkv:erased"


class Erasures:
    """Tombstones known so far and erasures that are not complete. `refresh` is for one thread, the rest for any."""

    def __init__(self, servers: Servers, counters: LevelCounters) -> None:
        self._servers = servers
        self._counters = counters
        self._follower = _Follower(lambda _: None, set())
        self._known: dict[bytes, None] = {}
        self._pending: dict[bytes, bytes] = {}  # namespace id -> tombstone

    def tombstones(self) -> list[bytes]:
        return list(self._known)

    def follow(self, on_tombstones: Callable[[list[bytes]], None]) -> None:
        """Have `refresh` report tombstones here: each once, those that are known already with the next full reading."""
        self._follower = _Follower(on_tombstones, set())

    def erase(self, namespace_id: bytes, point: bytes, until_s: float) -> bool:
        """Leave the tombstone and delete the blocks of every model; returns whether that is complete, else it is pending."""
        if len(self._pending) >= MAX_PENDING:
            self._pending.pop(next(iter(self._pending)), None)
        self._pending[namespace_id] = point
        try:
            self._delete(namespace_id, point, until_s)
        except WireError:
            return False
        except ReplyError as error:
            self._counters.fault(error.cause)
            return False
        if self._pending.get(namespace_id) == point:
            self._pending.pop(namespace_id, None)
        return True

    def retry(self, timeout_s: float) -> None:
        """Try what is pending again, up to the first that fails."""
        for namespace_id, point in list(self._pending.items()):
            if not self.erase(namespace_id, point, time.monotonic() + timeout_s):
                return

    def refresh(self, is_first: bool) -> None:
        """Read the tombstones.

        Args:
            is_first: read them even where their number is unchanged.

        Raises:
            WireError, ReplyError: they could not be read.
        """
        count = self._call(b"SCARD", _KEY)
        if count == len(self._known) and not is_first:
            return
        found: set[bytes] = set()
        cursor = b""
        until_s = time.monotonic() + REFRESH_TIMEOUT_S
        while cursor != b"0" and len(found) < MAX_TOMBSTONES:
            if time.monotonic() > until_s:
                raise ProtocolError
            cursor, points = _page(self._call(b"SSCAN", _KEY, cursor or b"0", b"COUNT", b"%d" % _PAGE))
            found.update(point for point in points if 0 < len(point) <= MAX_TOMBSTONE_BYTES)
        lost = [point for point in list(self._known) if point not in found]
        for first in range(0, len(lost), _PAGE):
            self._call(b"SADD", _KEY, *lost[first : first + _PAGE])
        new = sorted(point for point in found if point not in self._known)
        self._known.update(dict.fromkeys(new[: max(0, MAX_TOMBSTONES - len(self._known))]))
        follower = self._follower
        if unreported := [point for point in list(self._known) if point not in follower.reported]:
            follower.on_tombstones(unreported)
            follower.reported.update(unreported)

    def _delete(self, namespace_id: bytes, point: bytes, until_s: float) -> None:
        self._call(b"SADD", _KEY, point)
        self._known[point] = None
        pattern = b"radixkv:*:%s:*" % namespace_id.hex().encode()
        for server in self._servers.all():
            cursor = b""
            while cursor != b"0":
                if (now_s := time.monotonic()) > until_s:
                    raise WireError
                reply = server.call(
                    now_s + CALL_TIMEOUT_S, b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"%d" % _PAGE
                )
                cursor, keys = _page(reply)
                if keys:  # one command each: a cluster takes no keys of several slots in one
                    server.call_all(now_s + CALL_TIMEOUT_S, [(b"UNLINK", key) for key in keys])

    def _call(self, *parts: bytes) -> Reply:
        server = self._servers.of(_KEY)
        if server is None:
            raise WireError
        return server.call(time.monotonic() + CALL_TIMEOUT_S, *parts)


class _Follower(NamedTuple):
    on_tombstones: Callable[[list[bytes]], None]
    reported: set[bytes]


def _page(reply: Reply) -> tuple[bytes, list[bytes]]:
    """Cursor and members of a reply to SCAN or SSCAN."""
    if isinstance(reply, list) and len(reply) == 2:
        cursor, members = reply
        if isinstance(cursor, bytes) and cursor.isdigit() and isinstance(members, list):
            return cursor, [member for member in members if isinstance(member, bytes)]
    raise ProtocolError
