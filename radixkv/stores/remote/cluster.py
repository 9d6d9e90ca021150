"""The server that keeps a key: the only one, or the one of the key's slot in a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from radixkv.stores.remote.server import Server
from radixkv.stores.remote.url import RemoteUrl
from radixkv.stores.remote.wire import ProtocolError, Reply, ReplyError, WireError

__all__ = ["Servers"]

MAX_SERVERS = 256
REFRESH_S = 30.0
"""The map of slots is read again after this time; at the next call of `refresh` where a server failed or moved a slot."""


class Servers:
    """The servers that one URL leads to. `refresh` is for one thread, the rest for any."""

    def __init__(self, url: RemoteUrl, open_server: Callable[[RemoteUrl], Server]) -> None:
        self._url = url
        self._open = open_server
        self._first = open_server(url)
        self._others: dict[tuple[str, int], Server] = {}
        self._slots: list[Server | None] = []  # by slot, of a cluster
        self._is_stale = url.is_cluster
        self._read_s = 0.0

    def of(self, key: bytes) -> Server | None:
        """O(1); None where the cluster is not known yet or no server has the slot."""
        if not self._url.is_cluster:
            return self._first
        return self._slots[key_slot(key)] if self._slots else None

    def all(self) -> list[Server]:
        """Every server that keeps keys."""
        return list(self._others.values()) if self._url.is_cluster else [self._first]

    def moved(self) -> None:
        """A server answered that it does not keep a key."""
        self._is_stale = self._url.is_cluster

    def refresh(self, timeout_s: float) -> None:
        """Read the map of slots where it is due, from any server that answers; a failure leaves the old one."""
        if not self._url.is_cluster:
            return
        due = self._is_stale or not all(server.is_usable for server in self.all())
        if not due and time.monotonic() - self._read_s < REFRESH_S:
            return
        for server in (self._first, *self.all()):
            try:
                reply = server.call(time.monotonic() + timeout_s, b"CLUSTER", b"SLOTS")
                self._apply(reply, server)
            except (WireError, ReplyError):
                continue
            self._is_stale = False
            self._read_s = time.monotonic()
            return

    def close(self) -> None:
        for server in (self._first, *self._others.values()):
            server.close()

    def _apply(self, reply: Reply, asked: Server) -> None:
        ranges = _parse(reply, asked.url)
        places = {place for _, _, place in ranges}
        if len(places) > MAX_SERVERS:
            raise ProtocolError
        others = {
            place: self._others[place] if place in self._others else self._open(self._url.at(*place))
            for place in places
        }
        slots: list[Server | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, place in ranges:
            slots[first : last + 1] = [others[place]] * (last + 1 - first)
        gone = [server for place, server in self._others.items() if place not in places]
        self._others, self._slots = others, slots
        for server in gone:
            server.close()


def _parse(reply: Reply, asked: RemoteUrl) -> list[tuple[int, int, tuple[str, int]]]:
    """First slot, last slot and place of each primary, of CLUSTER SLOTS: ``[[first, last, [host, port, …], …], …]``."""
    if not isinstance(reply, list) or not reply:
        raise ProtocolError
    ranges = []
    for entry in reply:
        if not isinstance(entry, list) or len(entry) < 3 or not isinstance(entry[2], list) or len(entry[2]) < 2:
            raise ProtocolError
        first, last, (host, port, *_) = entry[0], entry[1], entry[2]
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last < REDIS_CLUSTER_HASH_SLOTS):
            raise ProtocolError
        if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(host, bytes | None):
            raise ProtocolError
        try:
            name = host.decode("ascii") if host else asked.host
        except UnicodeDecodeError:
            raise ProtocolError from None
        if len(name) > 255 or not name.isprintable():
            raise ProtocolError
        ranges.append((first, last, (name, port)))
    return ranges
