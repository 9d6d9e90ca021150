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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from radixkv.core.namespaces import adapter_of, is_derived, owner_of
from radixkv.stores.codec import BlockCodec, Rounding
from radixkv.stores.errors import SealError
from radixkv.stores.hints import LevelHints, mask
from radixkv.stores.host import HostLevel, Kept, Row
from radixkv.stores.lane import Lane
from radixkv.stores.loading import Load, Loader
from radixkv.stores.saving import WRITE_BATCH, Saver, Unsaved
from radixkv.stores.secrets.names import root_name

if TYPE_CHECKING:
    from radixkv.stores.disk import DiskLevel
    from radixkv.stores.remote import RemoteLevel
    from radixkv.stores.secrets.keys import NamespaceKeys, StoreKeys
    from radixkv.stores.stats import LevelStats

__all__ = ["BlockStore"]

_LOG = logging.getLogger(__name__)

_ROWS_KEPT_FOR_LOADS = 8
_SAVES_END_S = 30.0
"""Longest wait of a deletion, or of the end, for saves under way."""

_REMOTE_ERASE_S = 30.0

_FIRST_ERASURES_S = 5.0
"""How long a start waits for the remote level to say what was erased meanwhile. Then the disk level is read all the same."""


def _at_once() -> None:
    pass


def _ignore(_namespace_id: bytes) -> None:
    pass


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

    Attributes:
        wake: called, on any thread, when a load has news.
        hints: of the disk level, or else of host memory; None: there is neither.
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
        if disk is not None and (erased := keys.erased(disk.namespace_ids())):
            disk.erase(*erased)  # by another process, or by this one right before it ended
        self._fingerprint = fingerprint
        self._adapters = adapters
        self._codec = BlockCodec(fingerprint, self.block_bytes, rounding)
        self._lock = threading.Lock()
        self._clearing: Counter[str] = Counter()
        self._to_clear: dict[str, Future[None]] = {}  # whose erasure has not begun
        self._fresh: set[bytes] = set()  # ids of keys that came after an erasure here
        self._used: set[bytes] = set()  # ids of keys under which something was saved
        self._to_drop: dict[bytes, set[bytes]] = {}  # by namespace id: names below which nothing is to stay
        self._sharing = threading.RLock()
        self._parts: dict[str, float] = {}  # of the levels, by namespace
        self._chores = Lane(1, "radixkv-store-chores")
        self._disk_chores = Lane(1, "radixkv-store-disk")  # may wait for a disk that hangs: holds up no erasure
        self.hints: LevelHints | None = None
        if disk is not None or host.num_kept:
            self.hints = LevelHints(host, disk, keys, self._disk_chores.submit, self._has_hints)
        self._saver = Saver(host, self._codec, disk, remote)
        self._loader = Loader(host, self._codec, disk, remote, self._saver.put_again)
        if remote is not None:
            remote.follow_tombstones(self.take_tombstones)
            if disk is not None and not remote.await_tombstones(_FIRST_ERASURES_S):
                _LOG.warning(
                    "%s: erasures since the last start are unknown; the disk level is read all the same", remote
                )

    def share(self, parts: Mapping[str, float]) -> None:
        """From now on, keep these parts of host memory and of the disk level for namespaces: within its part a namespace loses
        no block there to others. Parts that exceed 1 together are cut in proportion. O(blocks).
        """
        with self._sharing:
            self._parts = dict(parts)
            whole = max(1.0, sum(parts.values()))
            by_id = {self.keys.of(namespace).id: part / whole for namespace, part in parts.items()}
            self.host.share(by_id)
            if self.disk is not None:
                self.disk.share(by_id)

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
        return name in self._saver

    @property
    def is_sealed(self) -> bool:
        """Whether blocks are also saved outside this process's memory."""
        return bool(self._sealed_levels)

    @property
    def num_in_flight(self) -> int:
        """Blocks that are being saved."""
        return self._saver.num_in_flight

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
            self._used.update(block.keys.id for block in blocks)
        self.host.keep([Kept(block.name, block.parent, block.keys.id, block.row, block.hint) for block in blocks])
        if self.is_sealed:
            self._saver.save(blocks)
            return
        for block in blocks:
            self.host.give_back([block.row], block.row.wait)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks given so far are saved, but for no write that hangs. Returns whether they are."""
        return self._saver.flush(timeout_s)

    # -- loading ------------------------------------------------------------------------------------------------------

    def count_on_disk(self, names: Sequence[bytes]) -> int:
        """Leading names that lie on the disk level. O(answer)."""
        if self.disk is None:
            return 0
        return next((index for index, name in enumerate(names) if name not in self.disk), len(names))

    def load(
        self,
        names: Sequence[bytes],
        keys: NamespaceKeys,
        deadline_s: float,
        *,
        is_remote: bool,
        copy: Callable[[int, Row], None] | None = None,
    ) -> Load:
        """Start to read blocks of one level; see `Loader.load`."""
        return self._loader.load(names, keys, deadline_s, self.wake, is_remote=is_remote, copy=copy)

    # -- on the caller's thread ----------------------------------------------------------------------------------------

    def read_now(self, names: Sequence[bytes], keys: NamespaceKeys, wait_s: float) -> dict[bytes, bytes]:
        """The blocks of these names that the store has, by name. Waits for the disk, and `wait_s` for the remote level."""
        found: dict[bytes, bytes] = {}

        def keep(name: bytes, sealed: memoryview) -> bool:
            data = bytearray(self.block_bytes)
            try:
                self._codec.open_into(keys, name, sealed, memoryview(data))
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
            buffer = memoryview(bytearray(self._codec.sealed_bytes))
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
            self._used.add(keys.id)
        for start in range(0, len(blocks), WRITE_BATCH):
            part = blocks[start : start + WRITE_BATCH]
            names = chain[start + 1 :]
            hints = [mask(keys.hint_key, names[at], hashes[start + at]) for at in range(len(part))]
            count = self._keep_now(chain[start:], keys, part, hints)
            batch = [
                self._codec.seal(keys, names[at], chain[start + at], block, None, hints[at])
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

    def _keep_now(
        self, chain: Sequence[bytes], keys: NamespaceKeys, blocks: Sequence[memoryview], hints: Sequence[bytes]
    ) -> int:
        """Keep successive blocks in the host level, as many as it takes. Returns how many of the first ones it has."""
        rows = self.host.take(len(blocks)) if self.host.num_kept else []
        for row, block in zip(rows, blocks, strict=False):
            row.wait()
            row.memory[:] = block
        self.host.keep([Kept(chain[at + 1], chain[at], keys.id, row, hints[at]) for at, row in enumerate(rows)])
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
        tombstone = self.keys.tombstone(keys.point)
        if self.remote is not None:
            self.remote.begin_erase(keys.id, tombstone)
        with self._lock:
            self._fresh -= {keys.id}
            self._used -= {keys.id}
            self._fresh |= {self.keys.of(namespace).id}
        on_destroyed()
        erased = self._forget(keys.id)
        if self.remote is not None:
            erased["remote"] = self.remote.erase(keys.id, tombstone, remote_s)
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
            erasing, is_unused = self._to_clear.pop(namespace), keys.id in self._fresh - self._used
        try:
            if is_unused and self.remote is None:  # where others may have put blocks
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
            self._disk_chores.submit(self._drop)

    def _drop(self) -> None:
        with self._lock:
            to_drop, self._to_drop = self._to_drop, {}
        self._forget_below(to_drop)

    def _forget_below(self, parents: Mapping[bytes, set[bytes]]) -> None:
        is_saved = self.flush(_SAVES_END_S)
        names = [name for below in parents.values() for name in below]
        self.host.forget_below(names)
        if self.disk is not None:
            self.disk.forget_below(names)
        self._saver.forget_below(parents)
        if not is_saved:
            for namespace_id, below in parents.items():
                self.drop(namespace_id, below)  # again, as a write that hangs may still store some of them

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
                if self.remote is not None:
                    self.remote.note_erased(namespace_id, tombstone)
                self._forget(namespace_id)

    def _forget(self, namespace_id: bytes) -> dict[str, bool]:
        """Delete blocks whose keys are destroyed, here."""
        self.on_erased(namespace_id)
        self.host.erase(namespace_id)
        erased = {"host": True} if self.host.num_kept else {}
        if self.disk is not None:
            erased["disk"] = self.disk.erase(namespace_id)
        with self._sharing:
            if self._parts:
                self.share(self._parts)  # the next blocks of the namespace have another id
        return erased

    def close(self, timeout_s: float = 8.0) -> None:
        """Save what is under way, stop the threads, close the levels. What hangs is waited for `timeout_s` seconds in all."""
        self.flush(_SAVES_END_S)
        until_s = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, until_s - time.monotonic())

        self._chores.close(left_s())
        self._disk_chores.close(left_s())
        self._loader.close(left_s())
        self._saver.close(left_s())
        last = Lane(1, "radixkv-store-close")
        for level in self._sealed_levels:
            last.submit(level.close)
        last.close(left_s())
