"""`radixkv serve` and one `radixkv worker` with a folder for blocks, of which the worker is killed and started again."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench.common.stacks import BLOCK_SIZE
from bench.faults.stack import Role
from radixkv.generation.client import GenerationClient

__all__ = ["Deployment", "Stored", "drop_pages", "stored"]

LEASE_TTL_S = 2.0
START_S = 600.0
_REST_S = 300.0
_LOOK_S = 0.1


class Stored(NamedTuple):
    """Content of a folder of blocks. `slots`: the slot file. `index_bytes`: of the index and its log."""

    slots: Path
    num_blocks: int
    slot_bytes: int
    index_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes in use: of slots that hold a block, and of the index."""
        return self.num_blocks * self.slot_bytes + self.index_bytes


class Deployment:
    """A service and a worker in separate processes, from entering to leaving this.

    Args:
        folder: for sockets, logs, keys and blocks.
        num_blocks: of the pool.
        arguments: further ones of `radixkv worker`.
        disk_bytes: size of the folder for blocks; 0: the worker has none.

    Attributes:
        client: of the current worker.
        blocks: the folder for blocks.
    """

    client: GenerationClient

    def __init__(self, folder: Path, num_blocks: int, arguments: Sequence[str], disk_bytes: int) -> None:
        folder.mkdir()
        self.blocks = folder / "blocks"
        service, self._address = (f"unix:{folder}/{name}.socket" for name in ("service", "worker"))
        store = ("--disk-cache", f"{self.blocks}:{disk_bytes}", "--store-key", str(folder / "store.key"))
        pool = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE))
        line = ("worker", "--service", service, "--listen", self._address, *pool, *arguments)
        serve = ("serve", "--listen", service, "--lease-ttl", str(LEASE_TTL_S))
        self._service = Role("service", serve, folder / "service.log")
        self._worker = Role("worker", (*line, *(store if disk_bytes else ())), folder / "worker.log")

    def __enter__(self) -> Self:
        try:
            self._service.start()
            self._service.wait_ready(START_S)
            self.start_worker()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._kill()

    def start_worker(self) -> float:
        """Start a worker in the place of a killed one. Returns the seconds until it serves."""
        start_s = time.monotonic()
        self._worker.start()
        self._worker.wait_ready(START_S)
        self.client = GenerationClient(self._address)
        return time.monotonic() - start_s

    def kill_worker(self) -> None:
        """Kill it with SIGKILL."""
        self.client.close()
        self._worker.send(signal.SIGKILL)
        self._worker.kill()

    def rest(self, idle_s: float = 0.0) -> None:
        """Wait for `idle_s`, and until the worker has saved everything.

        Raises:
            AssertionError: it has not after five minutes.
        """
        time.sleep(idle_s)
        deadline_s = time.monotonic() + _REST_S
        while num_left := self.client.stats().engine.num_store_unsaved_blocks:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{num_left} blocks are not saved after {_REST_S:g} s")
            time.sleep(_LOOK_S)

    def _kill(self) -> None:
        self._worker.kill()
        self._service.kill()


def stored(folder: Path) -> Stored:
    """Content of a folder of blocks that no process has open."""
    [slots] = folder.glob("*/slots")
    index = slots.with_name("index")
    with closing(sqlite3.connect(index)) as database:
        [(sealed_bytes,)] = database.execute("SELECT sealed_bytes FROM store")
        [(num_blocks,)] = database.execute("SELECT COUNT(*) FROM blocks")
    from radixkv.stores.disk.slots import slot_bytes_of

    return Stored(slots, num_blocks, slot_bytes_of(sealed_bytes), index.stat().st_size)


def drop_pages(folder: Path) -> None:
    """Have the system forget its copies in memory of a folder's files, as after a restart of the machine."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
