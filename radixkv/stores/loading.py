"""Blocks on their way from the store, on threads of its own, each opened into a row of host memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from radixkv.stores.errors import SealError
from radixkv.stores.host import HostLevel, Row
from radixkv.stores.lane import Lane

if TYPE_CHECKING:
    from radixkv.stores.codec import BlockCodec
    from radixkv.stores.disk import DiskLevel
    from radixkv.stores.remote import RemoteLevel
    from radixkv.stores.secrets.keys import NamespaceKeys

__all__ = ["Landed", "Load", "Loader"]

_LOG = logging.getLogger(__name__)

_NUM_READERS, _NUM_FETCHERS = 2, 2
_SLICE = 8
"""Blocks that a reader takes at a time."""

_MEMORY_RATE = 1e9
"""Bytes per second of a reader. One that was faster finds the blocks in the page cache, and has nothing read ahead."""

_WAKE_AT = 16
"""Landed blocks that wake the engine while more are to come: each time costs it a round."""

_ROW_WAIT_S = 0.1


class Landed(NamedTuple):
    """A block of a load that has come: `place` among its names. `row`: None where it has been copied out of it."""

    place: int
    row: Row | None


class Load:
    """Blocks on their way in. The store's threads add what has landed; the engine's takes it.

    Attributes:
        names: of the blocks, in the order in which they are read.
        keys: of their namespace.
        is_remote: whether they come from the remote level, where the first miss ends the load.
        started_s, first_s, last_s: on the monotonic clock: when it began, and when the first and the last block came.
        num_landed: blocks so far that have come.
        wake: the engine, which then takes them.

    `copy`: copies a row into the pool, by its place among the names, while the row is in a reader's cache.
    """

    def __init__(
        self,
        names: Sequence[bytes],
        keys: NamespaceKeys,
        *,
        is_remote: bool,
        deadline_s: float,
        wake: Callable[[], None],
        copy: Callable[[int, Row], None] | None = None,
    ) -> None:
        self.names = names
        self.keys = keys
        self.is_remote = is_remote
        self.is_cancelled = False
        self.started_s = self.first_s = self.last_s = time.monotonic()
        self.until_s = self.started_s + deadline_s
        self.num_landed = 0
        self.wake = wake
        self._copy = copy
        self._lock = threading.Lock()
        self._landed: list[Landed] = []
        self._num_left = len(names)

    @property
    def is_over(self) -> bool:
        """Whether no further block lands."""
        return self._num_left <= 0

    def take(self) -> list[Landed]:
        """Blocks that have landed since the last call. The caller gives their rows back to the store."""
        with self._lock:
            landed, self._landed = self._landed, []
        return landed

    def cancel(self) -> None:
        """No block lands any more."""
        with self._lock:
            self.is_cancelled = True

    def end_copies(self) -> None:
        """No block is copied into the pool any more, but by who takes it."""
        with self._lock:
            self._copy = None

    def land(self, place: int, row: Row) -> bool:
        """A block has been opened into its row. Returns whether its taker gets the row."""
        with self._lock:
            if self.is_cancelled:
                return False
            is_taken = self._copy is None
            if self._copy is not None:
                self._copy(place, row)
            self.last_s = time.monotonic()
            self.first_s = self.first_s if self.num_landed else self.last_s
            self.num_landed += 1
            self._landed.append(Landed(place, row if is_taken else None))
            is_due = is_taken and len(self._landed) % _WAKE_AT == 0
        if is_due:
            self.wake()
        return is_taken

    def tried(self, count: int) -> None:
        """So many of the names have landed or will not."""
        with self._lock:
            self._num_left -= count
            is_over = self.is_over
        if is_over:
            self.wake()


class Loader:
    """Reads blocks of the disk and the remote level, each on two threads. Any thread may call it.

    Args:
        host: has the rows.
        codec: opens blocks.
        disk, remote: levels; None: there is none.
        on_missed: called, on a thread of the loader, with names that the remote level lacks.
    """

    def __init__(
        self,
        host: HostLevel,
        codec: BlockCodec,
        disk: DiskLevel | None,
        remote: RemoteLevel | None,
        on_missed: Callable[[Sequence[bytes]], None],
    ) -> None:
        self._host = host
        self._codec = codec
        self._disk = disk
        self._remote = remote
        self._on_missed = on_missed
        self._readers = Lane(_NUM_READERS, "radixkv-store-read")
        self._fetchers = Lane(_NUM_FETCHERS, "radixkv-store-fetch")
        self._buffers = threading.local()

    def close(self, timeout_s: float) -> None:
        """End the threads, without reads that have not begun. What hangs is waited for `timeout_s` seconds in all."""
        until_s = time.monotonic() + timeout_s
        self._readers.close(timeout_s, drops=True)
        self._fetchers.close(max(0.0, until_s - time.monotonic()), drops=True)

    def load(
        self,
        names: Sequence[bytes],
        keys: NamespaceKeys,
        deadline_s: float,
        wake: Callable[[], None],
        *,
        is_remote: bool,
        copy: Callable[[int, Row], None] | None = None,
    ) -> Load:
        """Start to read blocks of one level, in this order. A remote level is asked for `deadline_s` seconds at most. `copy`:
        see `Load`.
        """
        load = Load(names, keys, is_remote=is_remote, deadline_s=deadline_s, wake=wake, copy=copy)
        if is_remote:
            self._fetchers.submit(partial(self._try, self._fetch, load, range(len(names))))
            return load
        for start in range(0, len(names), _SLICE):
            indices = range(start, min(start + _SLICE, len(names)))
            self._readers.submit(partial(self._try, self._read, load, indices))
        if self._disk is not None:
            self._disk.use(names)
        return load

    def _try(self, read: Callable[[Load, range], None], load: Load, indices: range) -> None:
        try:
            if not load.is_cancelled:
                read(load, indices)
        except Exception:
            _LOG.exception("blocks could not be read")
        load.tried(len(indices))

    def _read(self, load: Load, indices: range) -> None:
        assert self._disk is not None
        buffer = getattr(self._buffers, "sealed", None)
        if buffer is None:
            buffer = self._buffers.sealed = memoryview(bytearray(self._codec.sealed_bytes))
        if getattr(self._buffers, "is_slow", True):
            self._disk.prefetch([load.names[index] for index in indices])
        began_s = time.perf_counter()
        with _Rows(self._host, load, len(indices)) as rows:
            for index in indices:
                if load.is_cancelled:
                    return
                if self._disk.read(load.names[index], buffer) and not self._open(load, index, buffer, rows):
                    self._disk.forget(load.names[index])
        self._buffers.is_slow = time.perf_counter() - began_s > len(indices) * self._codec.sealed_bytes / _MEMORY_RATE

    def _fetch(self, load: Load, indices: range) -> None:
        """Read in order, up to the first miss."""
        remote = self._remote
        assert remote is not None
        for start in range(0, len(indices), _SLICE):
            names = load.names[start : start + _SLICE]
            left_s = load.until_s - time.monotonic()
            if load.is_cancelled or left_s <= 0:
                return
            with _Rows(self._host, load, len(names)) as rows:

                def receive(index: int, sealed: memoryview, start: int = start, rows: _Rows = rows) -> None:
                    if not self._open(load, start + index, sealed, rows):
                        remote.forget()
                        self._on_missed([load.names[start + index]])

                num_read = remote.read_each(names, load.keys.id, left_s, receive)
            if num_read < len(names):
                if time.monotonic() < load.until_s:  # else they may be there
                    self._on_missed(load.names[start:])
                return

    def _open(self, load: Load, index: int, sealed: bytes | memoryview, rows: _Rows) -> bool:
        """Open a block into a free row. Returns False for one that cannot be opened."""
        row = rows.next()
        if row is None:
            return True
        is_taken = False
        try:
            row.wait()
            self._codec.open_into(load.keys, load.names[index], sealed, row.memory)
            is_taken = load.land(index, row)
        except SealError:
            return False
        finally:
            if not is_taken:
                rows.free.append(row)
        return True


class _Rows:
    """Rows of a reader for up to `count` blocks of a load: `free`, and those that it gets. Free ones go back at its end."""

    def __init__(self, host: HostLevel, load: Load, count: int) -> None:
        self.free: list[Row] = []
        self._host, self._load, self._count = host, load, count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._host.give_back(self.free)

    def next(self) -> Row | None:
        """A row: the last that became free. Waits for one; None: the load is cancelled."""
        if not self.free:
            self.free += self._host.take(self._count)[::-1]
        while not (self.free or self._load.is_cancelled):
            self._load.wake()  # to take what has landed, of another reader by now, and so free its rows
            self.free += self._host.take(1, _ROW_WAIT_S)
        return self.free.pop() if self.free else None
