"""Blocks on their way into the store: one thread seals them and writes them to disk, another puts them into the remote level.

save --- queue ---> seal -> disk: slots, sync, index --- the newest 64 ---> remote
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from radixkv.stores.block import SealedBlock
from radixkv.stores.host import HostLevel, Row

if TYPE_CHECKING:
    from radixkv.stores.codec import BlockCodec
    from radixkv.stores.disk import DiskLevel
    from radixkv.stores.remote import RemoteLevel
    from radixkv.stores.secrets.keys import NamespaceKeys

__all__ = ["WRITE_BATCH", "Saver", "Unsaved"]

_LOG = logging.getLogger(__name__)

WRITE_BATCH, _WRITE_BATCH_BYTES = 32, 32 << 20
"""Most blocks in one write, and most bytes where that is less: one that takes long hangs."""

_MAX_WAITING_PUTS = 64
"""Sealed blocks that wait for the remote level; beyond, the oldest are left out."""

_PUT_WAIT_S, _PUT_POLL_S = 2.0, 0.005
"""How long the blocks of a worker without a disk level wait for room among them."""

_FLUSH_POLL_S = 0.1
_STALL_S = 5.0
"""A write that takes longer hangs: nothing waits for it any more."""

_PUT_LATELY = 65_536
"""Names put into the remote level that are not put again soon."""


class Unsaved(NamedTuple):
    """A block to save, in a row that the device fills. `hint`: see `SealedBlock`."""

    name: bytes
    parent: bytes
    keys: NamespaceKeys
    row: Row
    hint: bytes = b""


class Saver:
    """Saves blocks in the disk and the remote level, on two threads of its own. Any thread may call it.

    Args:
        host: gets back the rows of blocks that are sealed.
        codec: seals blocks.
        disk, remote: levels; None: there is none.
    """

    def __init__(self, host: HostLevel, codec: BlockCodec, disk: DiskLevel | None, remote: RemoteLevel | None) -> None:
        self._host = host
        self._codec = codec
        self._disk = disk
        self._remote = remote
        self._lock = threading.Lock()
        self._in_flight: Counter[bytes] = Counter()
        self._put_lately: dict[bytes, None] = {}  # to the remote level, in order
        self._unsaved: SimpleQueue[Unsaved | threading.Event] = SimpleQueue()
        self._sealed_into: list[bytearray | None] = []  # memory that the writer uses again
        self._batch_s = math.inf  # when the write under way began
        self._unput: deque[SealedBlock] = deque()
        self._putting = threading.Lock()  # while blocks are taken out of it and put
        self._has_news = threading.Event()
        self._is_closing = False
        self._threads = [threading.Thread(target=self._write, name="radixkv-store-write", daemon=True)]
        if remote is not None:
            self._threads.append(threading.Thread(target=self._put, name="radixkv-store-put", daemon=True))
        for thread in self._threads:
            thread.start()

    def __contains__(self, name: bytes) -> bool:
        """Whether a block is on its way, or, without a disk level, was put into the remote level lately. O(1)."""
        return name in self._in_flight or (self._disk is None and name in self._put_lately)

    @property
    def num_in_flight(self) -> int:
        """Blocks that are being saved."""
        with self._lock:
            return self._in_flight.total()

    def save(self, blocks: Sequence[Unsaved]) -> None:
        """Save blocks. Their rows are given back once they are sealed."""
        with self._lock:
            self._in_flight.update(block.name for block in blocks)
        for block in blocks:
            self._unsaved.put(block)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks given so far are saved, but for no write that hangs. Returns whether they are."""
        done = threading.Event()
        self._unsaved.put(done)
        until_s = time.monotonic() + timeout_s
        while not done.wait(_FLUSH_POLL_S):
            if (now_s := time.monotonic()) > until_s or now_s - self._batch_s > _STALL_S:
                return False
        return True

    def put_again(self, names: Sequence[bytes]) -> None:
        """The remote level lacks these blocks: they are put again once they are computed."""
        with self._lock:
            for name in names:
                self._put_lately.pop(name, None)

    def forget_below(self, parents: Mapping[bytes, set[bytes]]) -> None:
        """Delete the blocks below these names, by namespace id, in the remote level, and put none that waits for it."""
        if self._remote is None:
            return
        with self._putting:
            self._unput.extend(block for block in self._waiting_puts() if block.namespace_id not in parents)
        for namespace_id, names in parents.items():
            self._remote.forget_below(namespace_id, names)
        with self._lock:
            self._put_lately.clear()

    def close(self, timeout_s: float) -> None:
        """Save what was given, and end the threads. What hangs is waited for `timeout_s` seconds in all."""
        until_s = time.monotonic() + timeout_s
        self._is_closing = True
        self._unsaved.put(threading.Event())
        self._threads[0].join(timeout_s)  # all saves are with the levels
        self._has_news.set()
        self._threads[-1].join(max(0.0, until_s - time.monotonic()))

    # -- the thread that seals and writes -----------------------------------------------------------------------------

    def _write(self) -> None:
        while True:
            batch: list[Unsaved] = []
            item = self._unsaved.get()
            while isinstance(item, Unsaved):
                batch.append(item)
                if len(batch) == min(WRITE_BATCH, max(1, _WRITE_BATCH_BYTES // self._host.block_bytes)):
                    break
                try:
                    item = self._unsaved.get_nowait()
                except Empty:
                    break
            if batch:
                self._batch_s = time.monotonic()
                self._save(batch)
                self._batch_s = math.inf
            if isinstance(item, threading.Event):
                item.set()
                if self._is_closing:
                    return

    def _save(self, batch: Sequence[Unsaved]) -> None:
        if self._remote is None and not self._sealed_into:  # a remote level keeps blocks for a while
            with suppress(MemoryError):
                self._sealed_into = [bytearray(self._codec.sealed_bytes) for _ in range(WRITE_BATCH)]
        outs = self._sealed_into or [None] * len(batch)
        sealed = [block for block in map(self._seal, batch, outs) if block is not None]
        try:
            if self._disk is not None:
                self._disk.write(sealed)
            if self._remote is not None:
                until_s = time.monotonic() + (_PUT_WAIT_S if self._disk is None else 0.0)
                while len(self._unput) > _MAX_WAITING_PUTS - len(sealed) and time.monotonic() < until_s:
                    time.sleep(_PUT_POLL_S)
                with suppress(IndexError):
                    while len(self._unput) > _MAX_WAITING_PUTS - len(sealed):
                        self._unput.popleft()
                        self._remote.leave_out(1)
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
            return self._codec.seal(block.keys, block.name, block.parent, block.row.memory, out, block.hint)
        except Exception:
            _LOG.exception("a block could not be sealed")
            return None
        finally:
            self._host.give_back([block.row])

    # -- the thread that puts ------------------------------------------------------------------------------------------

    def _put(self) -> None:
        assert self._remote is not None
        while True:
            self._has_news.wait()
            self._has_news.clear()
            is_last = self._is_closing
            try:
                with self._putting:
                    batch = self._waiting_puts()
                    if self._remote.write_many(batch) == len(batch):
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
