"""The block store: saves blocks under their names and reads them back, on threads of its own.

    engine's thread                          store's threads
    save(blocks in rows)  --- queue --->     seal -> disk: slots, sync, index
                                                  -> remote
    load(names)           --- slices -->     disk or remote -> open into a row
    take what has landed  <-- wake -----

The engine copies between the pool and rows of the host level, which keeps what lies in them as far as it has room. Rows bound
the memory in use: a save that finds no row is left out, and a read waits for one. Whatever becomes of a level, a block is a
miss.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from radixkv.core.namespaces import adapter_of, is_derived, owner_of
from radixkv.stores.block import SealedBlock
from radixkv.stores.errors import SealError
from radixkv.stores.hints import DiskHints, mask
from radixkv.stores.host import HostLevel, Kept, Row
from radixkv.stores.lane import Lane
from radixkv.stores.secrets.names import root_name
from radixkv.stores.secrets.sealing import SEAL_BYTES, Sealer

if TYPE_CHECKING:
    from radixkv.stores.disk import DiskLevel
    from radixkv.stores.remote import RemoteLevel
    from radixkv.stores.secrets.keys import NamespaceKeys, StoreKeys
    from radixkv.stores.stats import LevelStats

__all__ = ["BlockStore", "Landed", "Load", "Rounding", "Unsaved"]

_LOG = logging.getLogger(__name__)

_NUM_READERS, _NUM_FETCHERS = 2, 2
_SLICE = 8
"""Blocks that a reader takes at a time."""

_MEMORY_RATE = 1e9
"""Bytes per second of a reader. One that was faster finds the blocks in the page cache, and has nothing read ahead."""

_WAKE_AT = 16
"""Landed blocks that wake the engine while more are to come: each time costs it a round."""

_WRITE_BATCH, _WRITE_BATCH_BYTES = 32, 32 << 20
"""Most blocks in one write, and most bytes where that is less: one that takes long hangs."""

_MAX_WAITING_PUTS = 64
"""Sealed blocks that wait for the remote level; beyond, the oldest are left out."""

_PUT_WAIT_S, _PUT_POLL_S = 2.0, 0.005
"""How long the blocks of a worker without a disk level wait for room among them."""

_ROWS_KEPT_FOR_LOADS = 8
_ROW_WAIT_S = 0.1
_SAVES_END_S = 30.0
"""Longest wait of a deletion, or of the end, for saves under way."""

_STALL_S = 5.0
"""A write that takes longer hangs: nothing waits for it any more."""

_REMOTE_ERASE_S = 30.0

_FIRST_ERASURES_S = 5.0
"""How long a start waits for the remote level to say what was erased meanwhile. Then the disk level is read all the same."""

_PUT_LATELY = 65_536
"""Names put into the remote level that are not put again soon."""


def _at_once() -> None:
    pass


def _ignore(_namespace_id: bytes) -> None:
    pass


class Rounding(Protocol):
    """Another form of a block outside the pool and the host level, of `num_bytes`."""

    @property
    def num_bytes(self) -> int: ...

    def round(self, row: memoryview, /) -> bytearray: ...

    def unround(self, rounded: memoryview, row: memoryview, /) -> None: ...


class Unsaved(NamedTuple):
    """A block to save, in a row that the device fills. `hint`: see `SealedBlock`."""

    name: bytes
    parent: bytes
    keys: NamespaceKeys
    row: Row
    hint: bytes = b""


class Landed(NamedTuple):
    """A block of a load that has come: `place` among its names."""

    place: int
    row: Row


_NextRow = Callable[[], Row | None]


class Load:
    """Blocks on their way in. The store's threads add what has landed; the engine's takes it.

    Attributes:
        names: of the blocks, in the order in which they are read.
        keys: of their namespace.
        is_remote: whether they come from the remote level, where the first miss ends the load.
        started_s, first_s, last_s: on the store's clock: when it began, and when the first and the last block landed.
        num_landed: blocks so far.
    """

    def __init__(
        self,
        names: Sequence[bytes],
        keys: NamespaceKeys,
        *,
        is_remote: bool,
        deadline_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.names = names
        self.keys = keys
        self.is_remote = is_remote
        self.is_cancelled = False
        self.started_s = self.first_s = self.last_s = clock()
        self.until_s = self.started_s + deadline_s
        self.num_landed = 0
        self._wake = wake
        self._clock = clock
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

    def settle(self, count: int, landed: Sequence[Landed], *, needs_rows: bool = False) -> None:
        """So many of the names have been tried; these have landed. `needs_rows`: more wait for the rows of these."""
        with self._lock:
            if landed:
                self.last_s = self._clock()
                self.first_s = self.first_s if self.num_landed else self.last_s
                self.num_landed += len(landed)
            self._landed += landed
            self._num_left -= count
            is_due = needs_rows or self.is_over or len(self._landed) >= _WAKE_AT
        if is_due:
            self._wake()


class BlockStore:
    """Levels below a pool. Any thread may call it.

    Args:
        keys: of the namespaces.
        fingerprint: of all that a block depends on but its tokens and namespace.
        adapters: the same of each adapter, by name.
        host: memory for blocks on their way, and a level where it keeps some.
        disk, remote: further levels; None: there is none.
        save_rate: most bytes per second that an idle worker is to save.
        rounding: of blocks in the further levels; None: they are stored as they are.
        clock: seconds, monotonic.

    Attributes:
        wake: called, on any thread, when a load has news.
        hints: of the disk level; None: there is none.
        on_erased: called, on any thread, with the id of keys that have been destroyed.
    """

    def __init__(
        self,
        keys: StoreKeys,
        fingerprint: bytes,
        host: HostLevel,
        *,
        adapters: Mapping[str, bytes],
        disk: DiskLevel | None,
        remote: RemoteLevel | None,
        save_rate: float,
        rounding: Rounding | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wake: Callable[[], None] = _at_once
        self.on_erased: Callable[[bytes], None] = _ignore
        self.keys = keys
        self.save_rate = save_rate
        self.host = host
        self.disk = disk
        self.remote = remote
        self._sealed_levels = [level for level in (disk, remote) if level is not None]
        self._levels = [host, *self._sealed_levels] if host.num_kept else self._sealed_levels
        self.block_bytes = host.block_bytes
        self._rounding = rounding
        self._data_bytes = self.block_bytes if rounding is None else rounding.num_bytes
        if disk is not None and (erased := keys.erased(disk.namespace_ids())):
            disk.erase(*erased)  # by another process, or by this one right before it ended
        self._fingerprint = fingerprint
        self._adapters = adapters
        self._sealer = Sealer(fingerprint)
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight: Counter[bytes] = Counter()
        self._put_lately: dict[bytes, None] = {}  # to the remote level, in order
        self._unsaved: SimpleQueue[Unsaved | threading.Event] = SimpleQueue()
        self._sealed_into: list[bytearray | None] = []  # memory that the writer uses again
        self._batch_s = math.inf  # when the write under way began
        self._clearing: Counter[str] = Counter()
        self._to_clear: dict[str, Future[None]] = {}  # whose erasure has not begun
        self._unused: set[bytes] = set()  # ids of keys that came after an erasure here, under which nothing was saved
        self._to_drop: dict[bytes, set[bytes]] = {}  # by namespace id: names below which nothing is to stay
        self._chores = Lane(1, "radixkv-store-chores")
        self.hints = None if disk is None else DiskHints(disk, keys, self._chores.submit, self._has_hints)
        self._unput: deque[SealedBlock] = deque()
        self._putting = threading.Lock()  # while blocks are taken out of it and put
        self._has_news = threading.Event()
        self._is_closing = False
        self._readers = Lane(_NUM_READERS, "radixkv-store-read")
        self._fetchers = Lane(_NUM_FETCHERS, "radixkv-store-fetch")
        self._buffers = threading.local()
        self._threads = [threading.Thread(target=self._write, name="radixkv-store-write", daemon=True)]
        if remote is not None:
            self._threads.append(threading.Thread(target=self._put, name="radixkv-store-put", daemon=True))
        for thread in self._threads:
            thread.start()
        if remote is not None:
            remote.follow_tombstones(self.take_tombstones)
            if disk is not None and not remote.await_tombstones(_FIRST_ERASURES_S):
                _LOG.warning(
                    "%s: erasures since the last start are unknown; the disk level is read all the same", remote
                )

    def keys_of(self, namespace: str) -> NamespaceKeys:
        """Keys of a namespace that is in use."""
        keys = self.keys.of(namespace)
        if self.hints is not None:
            self.hints.know(namespace, keys)
        return keys

    def _has_hints(self) -> None:
        self.wake()

    def root(self, keys: NamespaceKeys, adapter: str) -> bytes:
        """The parent of every first block of a namespace; `adapter`: its adapter, empty for none."""
        return root_name(keys, self.fingerprint_of(adapter))

    def fingerprint_of(self, adapter: str) -> bytes:
        """All that a block depends on but its tokens and namespace."""
        return self._fingerprint + self._adapters.get(adapter, b"")

    def __str__(self) -> str:
        return ", ".join(map(str, self._levels))

    def stats(self) -> tuple[LevelStats, ...]:
        """Counters of the levels, in the order in which they are read."""
        return tuple(level.stats() for level in self._levels)

    # -- saving -------------------------------------------------------------------------------------------------------

    def is_saved(self, name: bytes) -> bool:
        """Whether a block lies in the store or is on its way there. O(1)."""
        if not self.is_sealed:
            return name in self.host
        if self.disk is not None and name in self.disk:
            return True
        return name in self._in_flight or (self.disk is None and name in self._put_lately)

    @property
    def is_sealed(self) -> bool:
        """Whether blocks are also saved outside this process's memory."""
        return bool(self._sealed_levels)

    @property
    def num_in_flight(self) -> int:
        """Blocks that are being saved."""
        with self._lock:
            return self._in_flight.total()

    @property
    def num_free_rows(self) -> int:
        """Rows that saves may take now."""
        return max(0, self.host.num_free - _ROWS_KEPT_FOR_LOADS)

    def take_rows(self, count: int) -> list[Row]:
        """Up to so many free rows for blocks to save; the caller gives them back to the host level, or saves them."""
        return self.host.take(min(count, self.num_free_rows))

    def save(self, blocks: Sequence[Unsaved]) -> None:
        """Save blocks. Their rows are given back once they are sealed."""
        with self._lock:
            self._unused.difference_update(block.keys.id for block in blocks)
        self.host.keep([Kept(block.name, block.parent, block.keys.id, block.row) for block in blocks])
        if not self.is_sealed:
            for block in blocks:
                self.host.give_back([block.row], block.row.wait)
            return
        with self._lock:
            self._in_flight.update(block.name for block in blocks)
        for block in blocks:
            self._unsaved.put(block)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks given so far are saved, but for no write that hangs. Returns whether they are."""
        done = threading.Event()
        self._unsaved.put(done)
        until_s = self._clock() + timeout_s
        while not done.wait(_ROW_WAIT_S):
            if (now_s := self._clock()) > until_s or now_s - self._batch_s > _STALL_S:
                return False
        return True

    def _write(self) -> None:
        while True:
            batch: list[Unsaved] = []
            item = self._unsaved.get()
            while isinstance(item, Unsaved):
                batch.append(item)
                if len(batch) == min(_WRITE_BATCH, max(1, _WRITE_BATCH_BYTES // self.block_bytes)):
                    break
                try:
                    item = self._unsaved.get_nowait()
                except Empty:
                    break
            if batch:
                self._batch_s = self._clock()
                self._save(batch)
                self._batch_s = math.inf
            if isinstance(item, threading.Event):
                item.set()
                if self._is_closing:
                    return

    def _save(self, batch: Sequence[Unsaved]) -> None:
        if self.remote is None and not self._sealed_into:  # a remote level keeps blocks for a while
            self._sealed_into = [bytearray(self._data_bytes + SEAL_BYTES) for _ in range(_WRITE_BATCH)]
        outs = self._sealed_into or [None] * len(batch)
        sealed = [block for block in map(self._seal, batch, outs) if block is not None]
        try:
            if self.disk is not None:
                self.disk.write(sealed)
            if self.remote is not None:
                until_s = self._clock() + (_PUT_WAIT_S if self.disk is None else 0.0)
                while len(self._unput) > _MAX_WAITING_PUTS - len(sealed) and self._clock() < until_s:
                    time.sleep(_PUT_POLL_S)
                with suppress(IndexError):
                    while len(self._unput) > _MAX_WAITING_PUTS - len(sealed):
                        self._unput.popleft()
                        self.remote.leave_out(1)
                self._unput.extend(sealed)
                self._has_news.set()
        except Exception:
            _LOG.exception("blocks could not be saved")
        with self._lock:
            self._in_flight -= Counter(block.name for block in batch)

    def _seal(self, block: Unsaved, out: bytearray | None) -> SealedBlock | None:
        """Seal a block and give its row back. None: it cannot be sealed, for want of memory."""
        try:
            block.row.wait()
            return self._sealed(block.keys, block.name, block.parent, block.row.memory, out, block.hint)
        except Exception:
            _LOG.exception("a block could not be sealed")
            return None
        finally:
            self.host.give_back([block.row])

    def _sealed(
        self,
        keys: NamespaceKeys,
        name: bytes,
        parent: bytes,
        data: memoryview,
        out: bytearray | None = None,
        hint: bytes = b"",
    ) -> SealedBlock:
        stored = data if self._rounding is None else self._rounding.round(data)
        return SealedBlock(name, parent, keys.id, self._sealer.seal(keys, name, stored, out), hint)

    def _unseal(self, keys: NamespaceKeys, name: bytes, sealed: bytes | memoryview, out: memoryview) -> None:
        """Raises `SealError`."""
        if self._rounding is None:
            self._sealer.open_into(keys, name, sealed, out)
        else:
            rounded = memoryview(bytearray(self._data_bytes))
            self._sealer.open_into(keys, name, sealed, rounded)
            self._rounding.unround(rounded, out)

    def _put(self) -> None:
        assert self.remote is not None
        while True:
            self._has_news.wait()
            self._has_news.clear()
            is_last = self._is_closing
            try:
                with self._putting:
                    batch = self._waiting_puts()
                    if self.remote.write_many(batch) == len(batch):
                        self._was_put(batch)
            except Exception:
                _LOG.exception("blocks could not be put into the remote store")
            if is_last:
                return

    def _waiting_puts(self) -> list[SealedBlock]:
        batch: list[SealedBlock] = []
        with suppress(IndexError):
            while True:
                batch.append(self._unput.popleft())
        return batch

    def _was_put(self, batch: Sequence[SealedBlock]) -> None:
        with self._lock:
            self._put_lately.update(dict.fromkeys(block.name for block in batch))
            while len(self._put_lately) > _PUT_LATELY:
                del self._put_lately[next(iter(self._put_lately))]

    # -- loading ------------------------------------------------------------------------------------------------------

    def count_on_disk(self, names: Sequence[bytes]) -> int:
        """Leading names that lie on the disk level. O(answer)."""
        if self.disk is None:
            return 0
        return next((index for index, name in enumerate(names) if name not in self.disk), len(names))

    def load(self, names: Sequence[bytes], keys: NamespaceKeys, deadline_s: float, *, is_remote: bool) -> Load:
        """Start to read blocks of one level, in this order. A remote level is asked for `deadline_s` seconds at most."""
        load = Load(names, keys, is_remote=is_remote, deadline_s=deadline_s, wake=self.wake, clock=self._clock)
        if is_remote:
            self._fetchers.submit(partial(self._try, self._fetch, load, range(len(names))))
            return load
        for start in range(0, len(names), _SLICE):
            indices = range(start, min(start + _SLICE, len(names)))
            self._readers.submit(partial(self._try, self._read, load, indices))
        if self.disk is not None:
            self.disk.use(names)
        return load

    def _try(self, read: Callable[[Load, range, list[Landed]], None], load: Load, indices: range) -> None:
        landed: list[Landed] = []
        try:
            if not load.is_cancelled:
                read(load, indices, landed)
        except Exception:
            _LOG.exception("blocks could not be read")
        if load.is_cancelled:
            self.host.give_back(block.row for block in landed)
            landed = []
        load.settle(len(indices), landed)

    def _read(self, load: Load, indices: range, landed: list[Landed]) -> None:
        assert self.disk is not None
        buffer = getattr(self._buffers, "sealed", None)
        if buffer is None:
            buffer = self._buffers.sealed = memoryview(bytearray(self._data_bytes + SEAL_BYTES))
        if getattr(self._buffers, "is_slow", True):
            self.disk.prefetch([load.names[index] for index in indices])
        began_s = time.perf_counter()
        with self._rows_for(load, landed, len(indices)) as next_row:
            for index in indices:
                if load.is_cancelled:
                    return
                if self.disk.read(load.names[index], buffer) and not self._open(load, index, buffer, landed, next_row):
                    self.disk.forget(load.names[index])
        self._buffers.is_slow = time.perf_counter() - began_s > len(indices) * self._data_bytes / _MEMORY_RATE

    def _fetch(self, load: Load, indices: range, landed: list[Landed]) -> None:
        """Read in order, up to the first miss."""
        assert self.remote is not None
        for start in range(0, len(indices), _SLICE):
            names = load.names[start : start + _SLICE]
            left_s = load.until_s - self._clock()
            if load.is_cancelled or left_s <= 0:
                return
            with self._rows_for(load, landed, len(names)) as next_row:

                def receive(index: int, sealed: memoryview, start: int = start, next_row: _NextRow = next_row) -> None:
                    self._open(load, start + index, sealed, landed, next_row)

                num_read = self.remote.read_each(names, load.keys.id, left_s, receive)
            if num_read < len(names):
                with self._lock:
                    for name in load.names[start:]:  # they are put again once they are computed
                        self._put_lately.pop(name, None)
                return
            load.settle(0, landed)
            landed.clear()

    def _open(
        self, load: Load, index: int, sealed: bytes | memoryview, landed: list[Landed], next_row: _NextRow
    ) -> bool:
        """Open a block into a free row. Returns False for one that cannot be opened."""
        row = next_row()
        if row is None:
            return True
        try:
            row.wait()
            self._unseal(load.keys, load.names[index], sealed, row.memory)
        except BaseException as error:
            self.host.give_back([row])
            if isinstance(error, SealError):
                return False
            raise
        landed.append(Landed(index, row))
        return True

    @contextmanager
    def _rows_for(self, load: Load, landed: list[Landed], count: int) -> Iterator[_NextRow]:
        """A source of rows for up to so many blocks of a load. It waits for the next one while the caller holds none that the
        engine could free; None: the load is cancelled.
        """
        rows: list[Row] = []

        def next_row() -> Row | None:
            if not rows:
                rows.extend(self.host.take(count)[::-1])
            if not rows:
                load.settle(0, landed, needs_rows=True)
                landed.clear()
            while not (rows or load.is_cancelled):
                rows.extend(self.host.take(1, _ROW_WAIT_S))
            return rows.pop() if rows else None

        try:
            yield next_row
        finally:
            self.host.give_back(rows)

    # -- on the caller's thread ----------------------------------------------------------------------------------------

    def read_now(self, names: Sequence[bytes], keys: NamespaceKeys, wait_s: float) -> dict[bytes, bytes]:
        """The blocks of these names that the store has, by name. Waits for the disk, and `wait_s` for the remote level."""
        found: dict[bytes, bytes] = {}

        def keep(name: bytes, sealed: memoryview) -> bool:
            data = bytearray(self.block_bytes)
            try:
                self._unseal(keys, name, sealed, memoryview(data))
            except SealError:
                return False
            found[name] = bytes(data)
            return True

        for name in names:
            for row in self.host.find([name]):
                row.wait()
                found[name] = bytes(row.memory)
                self.host.give_back([row])
        if self.disk is not None:
            buffer = memoryview(bytearray(self._data_bytes + SEAL_BYTES))
            for name in names:
                if name not in found and self.disk.read(name, buffer) and not keep(name, buffer):
                    self.disk.forget(name)
        missing = [name for name in names if name not in found]

        def receive(index: int, sealed: memoryview) -> None:
            keep(missing[index], sealed)

        if self.remote is not None:
            self.remote.read_each(missing, keys.id, wait_s, receive)
        return found

    def save_now(
        self, chain: Sequence[bytes], keys: NamespaceKeys, blocks: Sequence[memoryview], hashes: Sequence[int]
    ) -> int:
        """Store successive blocks of a history; `chain`: the name of the block before them, then theirs; `hashes`: theirs.

        Returns:
            how many are stored, durably where there is a disk level; those of the end are left out first.
        """
        num_stored = 0
        with self._lock:
            self._unused.discard(keys.id)
        for start in range(0, len(blocks), _WRITE_BATCH):
            part = blocks[start : start + _WRITE_BATCH]
            names = chain[start + 1 :]
            count = self._keep_now(chain[start:], keys, part)
            batch = [
                self._sealed(
                    keys, names[at], chain[start + at], block, None, mask(keys.hint_key, names[at], hashes[start + at])
                )
                for at, block in enumerate(part if self.is_sealed else ())
            ]
            if self.disk is not None:
                count = self.disk.write(batch)
            if self.remote is not None:
                count = max(count, self.remote.write_many(batch))
            num_stored += count
            if count < len(part):
                break
        return num_stored

    def _keep_now(self, chain: Sequence[bytes], keys: NamespaceKeys, blocks: Sequence[memoryview]) -> int:
        """Keep successive blocks in the host level, as many as it takes. Returns how many of the first ones it has."""
        rows = self.host.take(len(blocks)) if self.host.num_kept else []
        for row, block in zip(rows, blocks, strict=False):
            row.wait()
            row.memory[:] = block
        self.host.keep([Kept(chain[at + 1], chain[at], keys.id, row) for at, row in enumerate(rows)])
        self.host.give_back(rows)
        return next((at for at in range(len(rows)) if chain[at + 1] not in self.host), len(rows))

    # -- the rest -----------------------------------------------------------------------------------------------------

    def erase(
        self, namespace: str, on_destroyed: Callable[[], object] = _at_once, remote_s: float = _REMOTE_ERASE_S
    ) -> dict[str, bool]:
        """Destroy a namespace's keys, durably, then delete its blocks. Returns each level, and whether all of it is deleted.

        Args:
            on_destroyed: called in between.
            remote_s: longest wait for the remote level, which goes on by itself.

        Raises:
            StoreKeyError: the key file cannot be replaced; nothing is erased.
        """
        keys = self.keys.erase(namespace)
        with self._lock:
            self._unused -= {keys.id}
            self._unused |= {self.keys.of(namespace).id}
        on_destroyed()
        erased = self._forget(keys.id)
        if self.remote is not None:
            erased["remote"] = self.remote.erase(keys.id, self.keys.tombstone(keys.point), remote_s)
        return erased

    def begin_clear(self, namespace: str) -> tuple[Future[None], bool]:
        """Nothing of a namespace is found, and no block is named in it, from now on until `clear` is done.

        Returns:
            a future that is done once what was stored cannot be read any more, or has the error, and whether `clear` is to be
            called: if not, an erasure that has not begun includes this one.
        """
        with self._lock:
            is_first = namespace not in self._to_clear
            self._clearing[namespace] += is_first
            return self._to_clear.setdefault(namespace, Future()), is_first

    def clear(self, namespace: str) -> None:
        """Erase a namespace soon, on another thread, after the saves under way; `begin_clear` comes first."""
        self._chores.submit(partial(self._clear, namespace))

    def is_clearing(self, namespace: str) -> bool:
        """Whether an erasure of a namespace is to come. O(1)."""
        return bool(self._clearing) and (namespace in self._clearing or owner_of(namespace) in self._clearing)

    def _clear(self, namespace: str) -> None:
        keys = self.keys.of(namespace)
        with self._lock:
            erasing, is_unused = self._to_clear.pop(namespace), keys.id in self._unused
        try:
            if is_unused:
                erasing.set_result(None)
            elif is_derived(namespace):
                self._forget_below({keys.id: {self.root(keys, adapter_of(namespace))}})
                erasing.set_result(None)
            else:
                self.erase(namespace, lambda: erasing.set_result(None), 0.0)
        except Exception as error:
            _LOG.exception("a cleared namespace could not be erased")
            if not erasing.done():
                erasing.set_exception(error)
            self._forget(keys.id)
        finally:
            with self._lock:
                self._clearing -= Counter([namespace])

    def drop(self, namespace_id: bytes, parents: Iterable[bytes]) -> None:
        """Delete the blocks below these names of a namespace soon, on another thread, after the saves under way."""
        with self._lock:
            is_first = not self._to_drop
            self._to_drop.setdefault(namespace_id, set()).update(parents)
        if is_first:
            self._chores.submit(self._drop)

    def _drop(self) -> None:
        with self._lock:
            to_drop, self._to_drop = self._to_drop, {}
        self._forget_below(to_drop)

    def _forget_below(self, parents: Mapping[bytes, set[bytes]]) -> None:
        self.flush(_SAVES_END_S)
        names = [name for below in parents.values() for name in below]
        self.host.forget_below(names)
        if self.disk is not None:
            self.disk.forget_below(names)
        if self.remote is not None:
            with self._putting:
                self._unput.extend(block for block in self._waiting_puts() if block.namespace_id not in parents)
            for namespace_id in parents:
                self.remote.forget_below(namespace_id, parents[namespace_id])
            with self._lock:
                self._put_lately.clear()

    def take_tombstones(self, tombstones: Sequence[bytes]) -> None:
        """Carry out erasures of other workers with this key file, found in the remote level.

        Raises:
            StoreKeyError: the key file cannot be replaced; those before are carried out.
        """
        for tombstone in tombstones:
            point = self.keys.point_of(tombstone)
            if point is None:
                continue
            namespace_id = self.keys.puncture(point)
            if namespace_id is not None:
                self._forget(namespace_id)

    def _forget(self, namespace_id: bytes) -> dict[str, bool]:
        """Delete blocks whose keys are destroyed, here."""
        self.on_erased(namespace_id)
        self.host.erase(namespace_id)
        erased = {"host": True} if self.host.num_kept else {}
        if self.disk is not None:
            erased["disk"] = self.disk.erase(namespace_id)
        return erased

    def close(self, timeout_s: float = 8.0) -> None:
        """Save what is under way, stop the threads, close the levels. What hangs is waited for `timeout_s` seconds in all."""
        self.flush(_SAVES_END_S)
        until_s = self._clock() + timeout_s

        def left_s() -> float:
            return max(0.0, until_s - self._clock())

        self._chores.close(left_s())
        self._readers.close(left_s(), drops=True)
        self._fetchers.close(left_s(), drops=True)
        self._is_closing = True
        self._unsaved.put(threading.Event())
        self._threads[0].join(left_s())  # all saves are with the levels
        self._has_news.set()
        self._threads[-1].join(left_s())
        last = Lane(1, "radixkv-store-close")
        for level in self._sealed_levels:
            last.submit(level.close)
        last.close(left_s())
