"""The remote level: reads and writes of sealed blocks with deadlines, erasure, tombstones, counters.

    radixkv:{fingerprint}:{namespace id}:{name}   in hexadecimal: the name of a block's parent, and the sealed block
    radixkv:erased                                a set of tombstones: points of the key file that were erased

Nothing is believed about what the server holds: each read asks, and a block that is computed is written again. No fault of the
server reaches the caller as an exception: reads miss, writes are lost, each counted by its cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from radixkv.stores.block import SealedBlock
from radixkv.stores.breaker import Breaker, BreakerState
from radixkv.stores.errors import StoreError
from radixkv.stores.remote.calls import ReadCall, WriteCall
from radixkv.stores.remote.cluster import Servers
from radixkv.stores.remote.erasure import CALL_TIMEOUT_S, MAX_TOMBSTONE_BYTES, Erasures
from radixkv.stores.remote.journal import Journal
from radixkv.stores.remote.server import Server
from radixkv.stores.remote.url import RemoteUrl
from radixkv.stores.remote.wire import ProtocolError, ReplyError, WireError
from radixkv.stores.secrets.names import NAME_BYTES
from radixkv.stores.stats import LevelCounters, LevelStats

__all__ = ["RemoteLevel"]

_LOG = logging.getLogger(__name__)

MAX_IN_FLIGHT_BYTES = 8 * 2**20
"""Of all calls together; one block where a block is larger."""
MAX_CALLS = 4
"""Calls at the same time; further ones wait."""
WRITE_TIMEOUT_S = 30.0
ERASE_TIMEOUT_S = 30.0
TOMBSTONES_S = 3.0
"""Time between two reads of the tombstones, and most time that deletions have between."""
STALE_S = 30.0
"""Without a new read for this time the level is not used."""
_POLL_S = 0.01


class RemoteLevel:
    """Sealed blocks of one model on a RESP server or cluster. Any thread may call any method; none raises for a fault.

    Args:
        url: the value of ``--remote``; see `RemoteUrl.parse`.
        fingerprint: of the model and its layout, at least 8 bytes.
        sealed_bytes: length of every sealed block; a value of another length is a miss.
        journal: a file for deletions that are not complete when the level is closed; None: they are lost then.

    Raises:
        InvalidArgumentError: the URL is wrong; a server that cannot be reached is no error.
    """

    def __init__(self, url: str, fingerprint: bytes, sealed_bytes: int, journal: Path | None = None) -> None:
        assert len(fingerprint) >= 8
        assert sealed_bytes >= 1
        parsed = RemoteUrl.parse(url)
        self._place = parsed.place
        self._prefix = b"radixkv:%s:" % fingerprint[:8].hex().encode()
        self._sealed_bytes = sealed_bytes
        value_bytes = NAME_BYTES + sealed_bytes
        self._counters = LevelCounters("remote")
        num_calls = max(1, min(MAX_CALLS, MAX_IN_FLIGHT_BYTES // sealed_bytes))
        self._window = max(1, MAX_IN_FLIGHT_BYTES // num_calls // sealed_bytes)  # blocks of one call on their way
        self._calls = threading.Semaphore(num_calls)
        self._rejections = Breaker(first_wait_s=1.0)  # of writes by a server that is full or only read
        self._epoch = 0  # grows with each connection, which may lead to another server
        self._read_epoch = -1  # in which the tombstones were read; -1 where that failed
        self._settled = threading.Event()  # reading them was tried in this epoch
        self._wake = threading.Event()
        self._is_closed = False

        def open_server(at: RemoteUrl) -> Server:
            return Server(at, value_bytes, self._counters, num_calls, self._connected)

        self._servers = Servers(parsed, open_server)
        self._journal = Journal(journal, self._place, self._counters)
        self._erasures = Erasures(self._servers, self._counters, self._journal)
        self._thread = threading.Thread(target=self._run, name="radixkv-remote", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"RemoteLevel({self._place!r})"

    def __str__(self) -> str:
        return self._place

    @property
    def is_usable(self) -> bool:
        """Whether a read may find something now: the server answers and its tombstones are known."""
        return self._knows_tombstones and any(server.is_usable for server in self._servers.all())

    def read_each(
        self, names: Sequence[bytes], namespace_id: bytes, deadline_s: float, receive: Callable[[int, memoryview], None]
    ) -> int:
        """Read blocks one by one without a copy; returns the number of hits.

        Args:
            receive: called in the caller's thread with the index in `names` and the sealed block, which is valid during
                that call. An exception from it ends the read and is raised.
        """
        begin_s = time.monotonic()
        until_s = begin_s + deadline_s
        if not names:
            return 0
        if not self._settled.wait(deadline_s) or not self._knows_tombstones:
            self._counters.miss("unavailable" if self._settled.is_set() else "deadline", len(names))
            return 0
        if not self._calls.acquire(timeout=max(0.0, until_s - time.monotonic())):
            self._counters.miss("deadline", len(names))
            return 0
        num_hits = 0

        def receive_value(index: int, value: memoryview) -> None:
            receive(index, value[NAME_BYTES:])

        try:
            prefix = self._prefix_of(namespace_id)
            for server, keys in self._by_server([prefix + _hex(name) for name in names]):
                if server is None:
                    self._counters.miss("unavailable", len(keys))
                    continue
                call = ReadCall(keys, receive_value, NAME_BYTES + self._sealed_bytes, self._window, self._counters)
                try:
                    call.run(server, until_s)
                finally:
                    num_hits += call.num_hits
                if call.error_cause == "moved":
                    self._moved()
        finally:
            self._calls.release()
            self._counters.hit(num_hits, num_hits * self._sealed_bytes, time.monotonic() - begin_s)
        return num_hits

    def write_many(self, blocks: Iterable[SealedBlock], deadline_s: float = WRITE_TIMEOUT_S) -> int:
        """Write blocks; returns how many the server acknowledged. Those that are lost are counted by cause."""
        begin_s = time.monotonic()
        until_s = begin_s + deadline_s
        fitting = []
        for block in blocks:
            if len(block.sealed) != self._sealed_bytes:
                self._counters.unwritten("length")
            elif self._erasures.is_erased(block.namespace_id):
                self._counters.unwritten("erased")
            else:
                fitting.append(block)
        if not fitting:
            return 0
        if not self._settled.wait(deadline_s) or not self._knows_tombstones or not self._rejections.allows():
            self._counters.unwritten("unavailable", len(fitting))
            return 0
        if not self._calls.acquire(timeout=max(0.0, until_s - time.monotonic())):
            self._counters.unwritten("deadline", len(fitting))
            return 0
        num_written = 0
        try:
            keys = [self._prefix_of(block.namespace_id) + _hex(block.name) for block in fitting]
            for server, group in self._by_server(keys):
                if server is None:
                    self._counters.unwritten("unavailable", len(group))
                    continue
                call = WriteCall([(key, fitting[index]) for index, key in group], self._window, self._counters)
                call.run(server, until_s)
                num_written += call.num_written
                if call.rejection:
                    self._rejected(server, call.rejection)
                elif call.num_written:
                    self._rejections.succeeded()
        finally:
            self._calls.release()
            self._erasures.wrote({block.namespace_id for block in fitting})
            self._counters.written(num_written, num_written * self._sealed_bytes, time.monotonic() - begin_s)
        return num_written

    def forget(self) -> None:
        """Count a block that did not open. It stays until it is written again."""
        self._counters.fault("seal")

    def leave_out(self, num_blocks: int) -> None:
        """Count blocks that are not written because too many waited."""
        self._counters.unwritten("queue", num_blocks)

    def tombstones(self) -> list[bytes]:
        """Those known so far, oldest first."""
        return self._erasures.tombstones()

    def follow_tombstones(self, on_tombstones: Callable[[list[bytes]], None]) -> None:
        """Call `on_tombstones`, from the level's thread, once with each tombstone.

        From this call on, and again after each outage, no block is read or written before all tombstones were reported.
        """
        self._erasures.follow(on_tombstones)
        self._connected()

    def erase(self, namespace_id: bytes, point: bytes, deadline_s: float = ERASE_TIMEOUT_S) -> bool:
        """Leave a tombstone, then delete the namespace's blocks of every model.

        Returns whether that is complete. If not, it is tried again, also by the next level with this journal.

        Args:
            point: the tombstone, 1 to 64 bytes.
        """
        assert 0 < len(point) <= MAX_TOMBSTONE_BYTES
        return self._erasures.erase(namespace_id, point, time.monotonic() + deadline_s)

    def begin_erase(self, namespace_id: bytes, point: bytes) -> None:
        """`erase` is to come: it is carried out by the next level with this journal if this one ends before."""
        self._erasures.begin(namespace_id, point)

    def note_erased(self, namespace_id: bytes, point: bytes) -> None:
        """A namespace is erased by the worker that has left this tombstone: none of its blocks is written here again."""
        self._erasures.note_erased(namespace_id, point)

    def forget_below(self, namespace_id: bytes, parents: Iterable[bytes]) -> None:
        """Delete soon, once the server answers, all blocks of a namespace and this model that follow blocks of these names.

        The next reading of the tombstones does it, so that many calls are one scan.
        """
        self._erasures.forget_below(self._prefix_of(namespace_id), parents)

    def await_tombstones(self, timeout_s: float) -> bool:
        """Wait until the tombstones have been read and reported; returns whether they have."""
        until_s = time.monotonic() + timeout_s
        while not self._knows_tombstones and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return self._knows_tombstones

    def stats(self) -> LevelStats:
        """The counters; `breaker` is the worst state of a cluster's servers."""
        states = {server.breaker.state for server in self._servers.all()}
        for state in (BreakerState.OPEN, BreakerState.TRIAL):
            if state in states:
                return self._counters.snapshot(breaker=state)
        return self._counters.snapshot()

    def close(self) -> None:
        """End the level's threads and connections; later calls miss."""
        self._is_closed = True
        self._settled.set()
        self._wake.set()
        self._servers.close()
        self._thread.join(CALL_TIMEOUT_S)
        self._journal.close()

    @property
    def _knows_tombstones(self) -> bool:
        return self._read_epoch == self._epoch and not self._is_closed

    def _prefix_of(self, namespace_id: bytes) -> bytes:
        return self._prefix + _hex(namespace_id) + b":"

    def _by_server(self, keys: Sequence[bytes]) -> Iterator[tuple[Server | None, list[tuple[int, bytes]]]]:
        groups: dict[Server | None, list[tuple[int, bytes]]] = {}
        for index, key in enumerate(keys):
            groups.setdefault(self._servers.of(key), []).append((index, key))
        yield from groups.items()

    def _rejected(self, server: Server, rejection: str) -> None:
        if rejection == "moved":
            self._moved()
        if rejection in ("readonly", "auth"):
            server.drop_idle()  # the address may lead to another server by now
        if self._rejections.failed():
            _LOG.warning("remote cache %s takes no blocks for a time: %s", self._place, rejection)

    def _moved(self) -> None:
        self._servers.moved()
        self._wake.set()

    def _connected(self) -> None:
        self._epoch += 1
        self._settled.clear()
        self._wake.set()

    def _run(self) -> None:
        """The level's thread: keeps the slots of a cluster and the tombstones current, and completes erasures."""
        was_read, read_s = True, 0.0
        while not self._is_closed:
            self._wake.clear()
            epoch, cause = self._epoch, ""
            try:
                self._servers.refresh(CALL_TIMEOUT_S)
                self._erasures.retry(TOMBSTONES_S)
                self._erasures.refresh(is_first=epoch != self._read_epoch)
                self._read_epoch, read_s = epoch, time.monotonic()
            except (WireError, ReplyError) as error:
                is_reply = isinstance(error, ProtocolError | ReplyError)
                cause = error.cause if is_reply else ""  # else the server has counted it
                if cause or time.monotonic() - read_s > STALE_S:
                    self._read_epoch = -1
            except StoreError:  # the key file cannot be replaced, so erased blocks could be read
                self._read_epoch = -1
                cause = "key file"
            except Exception:  # whatever happens, the thread goes on
                self._read_epoch = -1
                cause = "internal"
            if cause:
                self._counters.fault(cause)
                if was_read:
                    hint = "; a server of a cluster needs cluster=1" if cause == "moved" else ""
                    _LOG.warning(
                        "remote cache %s is not used, its tombstones are unknown: %s%s", self._place, cause, hint
                    )
            was_read = not cause
            if epoch == self._epoch:
                self._settled.set()
                self._wake.wait(TOMBSTONES_S)


def _hex(name: bytes) -> bytes:
    return name.hex().encode()
