"""The disk level compared with other stores of one machine: blocks written durably and read back, in turns.

    radixkv         the disk level: slots, `fdatasync`, a commit of SQLite's
    LMDB            one transaction per batch, synced
    files           a file per block, each synced, and their folder
    SQLite blobs    the blocks as rows, write-ahead log, `synchronous=FULL`
    RocksDB         with blob files, one synced batch (package `rocksdict`, where it is installed)

All get the same sealed blocks in batches of 32; a batch counts when it is durable. Stores take turns batch by batch, in rotated
order. Reads are of random blocks into the caller's buffer, from the system's page cache. Two loads: blocks of SmolLM2-135M
(184,320 bytes), and of 16 KiB. Each store's blocks are compared with what was written. Figures are medians of batches.

    python -m bench.stores            two minutes
    python -m bench.stores --quick    some seconds; judges nothing

Exit code of a full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, percentile
from radixkv.stores.block import SealedBlock
from radixkv.stores.disk import DiskLevel
from radixkv.stores.keys import StoreKeys
from radixkv.stores.sealing import SEAL_BYTES, Sealer

__all__ = ["main"]

LOADS = {"184,320 B": (184_320, 24), "16 KiB": (16_384, 60)}
"""Bytes of a block, and batches in a full run."""

BATCH, QUICK_ROUNDS = 32, 3
MIN_WRITE, MIN_READ = 2.0, 0.8
FINGERPRINT = bytes(32)


class Store(Protocol):
    """A store under test. Every write is durable when it returns; `read` fills the buffer."""

    def write(self, blocks: Sequence[SealedBlock]) -> None: ...
    def read(self, name: bytes, buffer: memoryview) -> None: ...
    def close(self) -> None: ...


class Ours:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:
        self._level = DiskLevel(folder, 2 * num_blocks * (sealed_bytes + 1024), FINGERPRINT, sealed_bytes)

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        assert self._level.write(blocks) == len(blocks)

    def read(self, name: bytes, buffer: memoryview) -> None:
        assert self._level.read(name, buffer)

    def close(self) -> None:
        self._level.close()


class LMDB:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:
        import lmdb

        size = 2 * num_blocks * (sealed_bytes + 8192) + (64 << 20)
        self._environment = lmdb.open(str(folder), map_size=size, metasync=True, sync=True, readahead=False)

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        with self._environment.begin(write=True) as transaction:
            for block in blocks:
                transaction.put(block.name, block.sealed)

    def read(self, name: bytes, buffer: memoryview) -> None:
        with self._environment.begin(buffers=True) as transaction:
            buffer[:] = transaction.get(name)

    def close(self) -> None:
        self._environment.close()


class Files:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:  # noqa: ARG002
        folder.mkdir()
        self._folder = folder

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        for block in blocks:
            fd = os.open(self._folder / block.name.hex(), os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, block.sealed)
            os.fdatasync(fd)
            os.close(fd)
        fd = os.open(self._folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def read(self, name: bytes, buffer: memoryview) -> None:
        fd = os.open(self._folder / name.hex(), os.O_RDONLY)
        os.preadv(fd, [buffer], 0)
        os.close(fd)

    def close(self) -> None:
        pass


class Blobs:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:  # noqa: ARG002
        folder.mkdir()
        self._connection = sqlite3.connect(folder / "blobs", isolation_level=None)
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE blocks (name BLOB PRIMARY KEY, sealed BLOB)")

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO blocks VALUES (?, ?)", ((block.name, block.sealed) for block in blocks)
        )
        self._connection.execute("COMMIT")

    def read(self, name: bytes, buffer: memoryview) -> None:
        (buffer[:],) = self._connection.execute("SELECT sealed FROM blocks WHERE name = ?", (name,)).fetchone()

    def close(self) -> None:
        self._connection.close()


class RocksDB:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:  # noqa: ARG002
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_enable_blob_files(True)
        options.set_min_blob_size(4096)
        self._rocksdict, self._store = rocksdict, rocksdict.Rdict(str(folder), options)
        synced = rocksdict.WriteOptions()
        synced.sync = True
        self._store.set_write_options(synced)

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for block in blocks:
            batch.put(block.name, block.sealed)
        self._store.write(batch)

    def read(self, name: bytes, buffer: memoryview) -> None:
        buffer[:] = self._store[name]

    def close(self) -> None:
        self._store.close()


OURS = "radixkv"
STORES: dict[str, Callable[[Path, int, int], Store]] = {
    OURS: Ours,
    "LMDB": LMDB,
    "files": Files,
    "SQLite blobs": Blobs,
    "RocksDB": RocksDB,
}


class Batches:
    """Sealed blocks of random data, in chains of one batch; the same for every store."""

    def __init__(self, folder: Path, data_bytes: int, seed: int) -> None:
        self._keys = StoreKeys(folder / "key").of("bench")
        self._sealer = Sealer(FINGERPRINT)
        self._draw = random.Random(seed)
        self._data_bytes = data_bytes

    def next(self) -> list[SealedBlock]:
        parent, blocks = bytes(16), []
        for _ in range(BATCH):
            name = self._draw.randbytes(16)
            sealed = self._sealer.seal(self._keys, name, self._draw.randbytes(self._data_bytes))
            blocks.append(SealedBlock(name, parent, self._keys.id, sealed))
            parent = name
        return blocks


def measure(folder: Path, data_bytes: int, num_rounds: int, seed: int, skipped: dict[str, str]) -> dict[str, Any]:
    """MB/s of every store: each batch's writes, then each batch's reads."""
    sealed_bytes, draw = data_bytes + SEAL_BYTES, random.Random(seed)
    stores: dict[str, Store] = {}
    for name, make in STORES.items():
        try:
            stores[name] = make(folder / name.replace(" ", "-"), sealed_bytes, num_rounds * BATCH)
        except ImportError as error:
            skipped[name] = f"{error.name} is not installed"
    batches, blocks = Batches(folder, data_bytes, seed), {}
    speeds: dict[str, dict[str, list[float]]] = {name: {"write": [], "read": []} for name in stores}
    batch_mb = BATCH * sealed_bytes / 1e6
    order = list(stores)
    progress = Progress(f"batches of {data_bytes:,} B", 2 * num_rounds)
    for _ in range(num_rounds):
        batch = batches.next()
        blocks.update((block.name, block.sealed) for block in batch)
        for name in order:
            os.sync()  # so that each pays for its own pages
            started_s = time.perf_counter()
            stores[name].write(batch)
            speeds[name]["write"].append(batch_mb / (time.perf_counter() - started_s))
        order.append(order.pop(0))
        progress.advance()
    buffer = memoryview(bytearray(sealed_bytes))
    for name, store in stores.items():
        for each, sealed in blocks.items():
            store.read(each, buffer)
            assert buffer == sealed, f"{name} returned another block than was written"
    for _ in range(num_rounds):
        names = draw.choices(list(blocks), k=BATCH)
        for name in order:
            read = stores[name].read
            started_s = time.perf_counter()
            for each in names:
                read(each, buffer)
            speeds[name]["read"].append(batch_mb / (time.perf_counter() - started_s))
        order.append(order.pop(0))
        progress.advance()
    for store in stores.values():
        store.close()
    return speeds


def judge(load: str, speeds: dict[str, dict[str, list[float]]], skipped: dict[str, str], made: Report) -> None:
    """Add the table, figures and bars of one load."""
    medians = {name: {way: percentile(each[way], 0.5) for way in each} for name, each in speeds.items()}
    best = {way: max(each[way] for name, each in medians.items() if name != OURS) for way in ("write", "read")}
    rows = [
        (name, *(cell for way in ("write", "read") for cell in (f"{each[way]:,.0f}", f"{each[way] / best[way]:.2f}")))
        for name, each in medians.items()
    ]
    rows += [(name, f"skipped: {reason}", "", "", "") for name, reason in skipped.items()]
    columns = ("store", "write MB/s", "/ best other", "read MB/s", "/ best other")
    made.tables.append(Table(f"blocks of {load}, batches of {BATCH}, each durable", columns, rows))
    made.figures[load] = {"median_mb_per_s": medians, "mb_per_s": speeds, "skipped": skipped}
    ours = medians[OURS]
    made.bars += [
        Bar(f"{load}: write, of the best other", ours["write"] / best["write"], MIN_WRITE, "x", at_least=True),
        Bar(f"{load}: read, of the best other", ours["read"] / best["read"], MIN_READ, "x", at_least=True),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.stores", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="some seconds; written only with --json")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the system's temporary folder)")
    parser.add_argument("--seed", type=int, default=0, help="of blocks and order (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/stores.json on a full run)")
    options = parser.parse_args(arguments)
    made = Report("stores", options.seed)
    for load, (data_bytes, num_rounds) in LOADS.items():
        skipped: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="radixkv-bench-", dir=options.folder) as folder:
            rounds = QUICK_ROUNDS if options.quick else num_rounds
            judge(load, measure(Path(folder), data_bytes, rounds, options.seed, skipped), skipped, made)
    path = options.json or (None if options.quick else RESULTS_DIR / "stores.json")
    return made.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
