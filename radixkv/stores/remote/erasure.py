"""Tombstones on the remote level, and the deletion of an erased namespace's blocks, or of branches.

A tombstone is left before anything is deleted, so that a worker that was away erases too. Tombstones that a flush or an
eviction lost are put back by every worker that has seen them. The server is not trusted: the owner of the key file checks
a tombstone before it acts on it. A branch has no tombstone: its worker tries to delete it, and leaves it to the next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from radixkv.stores.remote.cluster import Servers
from radixkv.stores.remote.journal import Deletion, Journal
from radixkv.stores.remote.server import Server
from radixkv.stores.remote.wire import ProtocolError, Reply, ReplyError, WireError
from radixkv.stores.secrets.names import NAME_BYTES
from radixkv.stores.stats import LevelCounters

__all__ = ["CALL_TIMEOUT_S", "MAX_TOMBSTONE_BYTES", "Erasures"]

CALL_TIMEOUT_S = 2.0
REFRESH_TIMEOUT_S = 20.0
MAX_TOMBSTONES = 100_000
"""With more the level is not used: an erasure would be missed."""
MAX_TOMBSTONE_BYTES = 64
MAX_PENDING = 10_000
"""Erasures, and names of a namespace below which blocks are to go; of more, all of the namespace goes."""
_ALL = b"all"
_PAGE = 1000
_KEY = b"radixkv:erased"


class Erasures:
    """Tombstones known so far and erasures that are not complete. `refresh` is for one thread, the rest for any.

    Args:
        journal: keeps what is not complete; it has that of earlier workers.
    """

    def __init__(self, servers: Servers, counters: LevelCounters, journal: Journal) -> None:
        self._servers = servers
        self._counters = counters
        self._follower = _Follower(lambda _: None, set())
        self._known: dict[bytes, None] = {}
        self._erased: dict[bytes, bytes] = {}  # namespace id -> tombstone
        self._written: set[bytes] = set()  # those of which a block was written meanwhile
        self._pending: dict[bytes, bytes] = {}  # those whose blocks are not all deleted
        self._erasing: dict[bytes, Iterator[None]] = {}  # deletions whose time ended, by namespace id
        self._lock = threading.Lock()
        self._dropped: dict[bytes, set[bytes]] = {}  # prefix of keys -> names below which all goes
        self._dropping: _Dropping | None = None  # what `retry` has begun of it
        self._journal = journal
        for is_branch, target, value in journal.read():
            if is_branch:
                self._dropped.setdefault(target, set()).add(value)
            else:
                self._pending[target] = value

    def tombstones(self) -> list[bytes]:
        return list(self._known)

    def follow(self, on_tombstones: Callable[[list[bytes]], None]) -> None:
        """Have `refresh` report tombstones here: each once, those that are known already with the next full reading."""
        self._follower = _Follower(on_tombstones, set())

    def begin(self, namespace_id: bytes, point: bytes) -> None:
        """An erasure is pending from now on, durably, and no block of the namespace is to be written."""
        self._erased[namespace_id] = point
        if self._pending.get(namespace_id) != point:
            if len(self._pending) >= MAX_PENDING:
                self._is_done(next(iter(self._pending)))
            self._pending[namespace_id] = point
            self._journal.add([Deletion(False, namespace_id, point)])

    def note_erased(self, namespace_id: bytes, point: bytes) -> None:
        """Another worker erases a namespace: no block of it is to be written here."""
        self._erased[namespace_id] = point

    def is_erased(self, namespace_id: bytes) -> bool:
        return namespace_id in self._erased

    def wrote(self, namespace_ids: Iterable[bytes]) -> None:
        """Blocks of these namespaces have been written: those erased meanwhile are deleted again, for what a scan missed."""
        for namespace_id in namespace_ids:
            if (point := self._erased.get(namespace_id)) is not None:
                self._written.add(namespace_id)
                self.begin(namespace_id, point)

    def erase(self, namespace_id: bytes, point: bytes, until_s: float) -> bool:
        """Leave the tombstone and delete the blocks of every model; returns whether that is complete, else it is pending."""
        self.begin(namespace_id, point)
        steps = self._erasing.pop(namespace_id, None) or self._delete(namespace_id, point)
        try:
            if not _carry_out(steps, until_s):
                self._erasing[namespace_id] = steps
                return False
        except WireError:
            return False
        except ReplyError as error:
            self._counters.fault(error.cause)
            return False
        if self._pending.get(namespace_id) == point:
            self._is_done(namespace_id)
        if namespace_id in self._written:
            self._written.discard(namespace_id)
            self.begin(namespace_id, point)
            return False
        return True

    def _is_done(self, namespace_id: bytes) -> None:
        self._erasing.pop(namespace_id, None)
        if (point := self._pending.pop(namespace_id, None)) is not None:
            self._journal.remove([Deletion(False, namespace_id, point)])

    def forget_below(self, prefix: bytes, parents: Iterable[bytes]) -> None:
        """Have `retry` delete the blocks below these names, whose keys begin with `prefix`."""
        with self._lock:
            names = self._dropped.setdefault(prefix, set())
            new = set() if _ALL in names else set(parents) - names
            if len(names) + len(new) > MAX_PENDING:
                self._journal.remove(Deletion(True, prefix, name) for name in names)
                names.clear()
                new = {_ALL}
            names |= new
            self._journal.add(Deletion(True, prefix, name) for name in new)

    def retry(self, timeout_s: float) -> None:
        """Go on with what is pending, up to the first that fails, for `timeout_s` seconds at most."""
        until_s = time.monotonic() + timeout_s
        for namespace_id, point in list(self._pending.items()):
            if not self.erase(namespace_id, point, until_s):
                return
        while self._dropping or self._dropped:
            if self._dropping is None:
                with self._lock:
                    prefix, names = self._dropped.popitem()
                self._dropping = _Dropping(prefix, names, self._delete_below(prefix, names))
            prefix, names, steps = self._dropping
            try:
                if not _carry_out(steps, until_s):
                    return
            except (WireError, ReplyError) as error:
                if isinstance(error, ReplyError):
                    self._counters.fault(error.cause)
                self._dropping = None
                self.forget_below(prefix, names)
                return
            self._dropping = None
            with self._lock:
                done = names - self._dropped.get(prefix, set())
                self._journal.remove([Deletion(True, prefix, name) for name in done])

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
        while cursor != b"0" and len(found) <= MAX_TOMBSTONES:
            if time.monotonic() > until_s:
                raise ProtocolError
            cursor, points = _page(self._call(b"SSCAN", _KEY, cursor or b"0", b"COUNT", b"%d" % _PAGE))
            found.update(point for point in points if 0 < len(point) <= MAX_TOMBSTONE_BYTES)
        if len(found | self._known.keys()) > MAX_TOMBSTONES:
            raise ProtocolError
        lost = [point for point in list(self._known) if point not in found]
        for first in range(0, len(lost), _PAGE):
            self._call(b"SADD", _KEY, *lost[first : first + _PAGE])
        new = sorted(point for point in found if point not in self._known)
        self._known.update(dict.fromkeys(new))
        follower = self._follower
        if unreported := [point for point in list(self._known) if point not in follower.reported]:
            follower.on_tombstones(unreported)
            follower.reported.update(unreported)

    def _delete(self, namespace_id: bytes, point: bytes) -> Iterator[None]:
        """Leave the tombstone and delete the blocks of every model, a page at each step."""
        self._call(b"SADD", _KEY, point)
        self._known[point] = None
        yield
        for server, keys in self._scan(b"radixkv:*:%s:*" % namespace_id.hex().encode()):
            if keys:
                _each(server, keys, b"UNLINK")
            yield

    def _delete_below(self, prefix: bytes, parents: set[bytes]) -> Iterator[None]:
        """Delete all blocks below these names, a page at each step. O(blocks of the namespace), in memory, too."""
        below: dict[bytes, list[tuple[Server, bytes]]] = {}
        for server, keys in self._scan(prefix + b"*"):
            found = _each(server, keys, b"GETRANGE", b"0", b"%d" % (NAME_BYTES - 1)) if keys else []
            for key, parent in zip(keys, found, strict=True):
                if isinstance(parent, bytes):
                    below.setdefault(_ALL if _ALL in parents else parent, []).append((server, key))
            yield
        gone, unlinked = list(parents), dict[Server, list[bytes]]()
        for name in gone:
            for server, key in below.pop(name, ()):
                unlinked.setdefault(server, []).append(key)
                with contextlib.suppress(ValueError):  # no key of ours
                    gone.append(bytes.fromhex(key[len(prefix) :].decode()))
        for server, keys in unlinked.items():
            for first in range(0, len(keys), _PAGE):
                _each(server, keys[first : first + _PAGE], b"UNLINK")
                yield

    def _scan(self, pattern: bytes) -> Iterator[tuple[Server, list[bytes]]]:
        """The keys of a pattern, on every server, by pages, which may be empty. It may rest between two pages; a server that is
        started again meanwhile may hold keys that it misses.
        """
        servers = self._servers.all()
        if not servers:  # the cluster is not known yet
            raise WireError
        for server in servers:
            cursor = b""
            while cursor != b"0":
                until_s = time.monotonic() + CALL_TIMEOUT_S
                cursor, keys = _page(
                    server.call(until_s, b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"%d" % _PAGE)
                )
                yield server, keys

    def _call(self, *parts: bytes) -> Reply:
        server = self._servers.of(_KEY)
        if server is None:
            raise WireError
        return server.call(time.monotonic() + CALL_TIMEOUT_S, *parts)


class _Follower(NamedTuple):
    on_tombstones: Callable[[list[bytes]], None]
    reported: set[bytes]


class _Dropping(NamedTuple):
    """`steps`: the deletion, under way, of the blocks below `names`, whose keys begin with `prefix`."""

    prefix: bytes
    names: set[bytes]
    steps: Iterator[None]


def _carry_out(steps: Iterator[None], until_s: float) -> bool:
    """Take steps until they or the time are over; returns whether the steps are. Where they are not, a later call goes on."""
    return all(time.monotonic() <= until_s for _ in steps)


def _each(server: Server, keys: list[bytes], command: bytes, *arguments: bytes) -> list[Reply]:
    """The replies to one command for each key: a cluster takes no keys of several slots in one."""
    return server.call_all(time.monotonic() + CALL_TIMEOUT_S, [(command, key, *arguments) for key in keys])


def _page(reply: Reply) -> tuple[bytes, list[bytes]]:
    """Cursor and members of a reply to SCAN or SSCAN."""
    if isinstance(reply, list) and len(reply) == 2:
        cursor, members = reply
        if isinstance(cursor, bytes) and cursor.isdigit() and isinstance(members, list):
            return cursor, [member for member in members if isinstance(member, bytes)]
    raise ProtocolError
