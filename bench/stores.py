"""The disk level compared with other stores of one machine: blocks written durably and read back, in turns.

    radixkv         the disk level: slots, `fdatasync`, a commit of SQLite's
    LMDB            one transaction per batch, synced
    files           a file per block, each synced, and their folder
    SQLite blobs    the blocks as rows, write-ahead log, `synchronous=FULL`
    RocksDB         with blob files, one synced batch (package `rocksdict`, where it is installed)
    bare file       no store: the same bytes into one allocated file, and one `fdatasync`: the disk's own limit

All get the same sealed blocks in batches of 32; a batch counts when it is durable. Stores take turns batch by batch, in rotated
order. Random batches are then read into the caller's buffer: from the disk, each store opened again with nothing of it in the
system's page cache, and from that cache. There LMDB is ahead: it copies from mapped memory, which a failing disk or a cut file
turns into a signal that ends the process. So the bar is on reads from the disk. Two loads: blocks of SmolLM2-135M (184,320
bytes), and of 16 KiB. Each store's blocks are compared with what was written. Figures are medians of batches.

    python -m bench.stores            two minutes
    python -m bench.stores --quick    some seconds; judges nothing

Exit code of a full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, percentile
from radixkv.stores.block import SealedBlock
from radixkv.stores.disk import DiskLevel
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.sealing import SEAL_BYTES, Sealer

__all__ = ["main"]

LOADS = {"184,320 B": (184_320, 24), "16 KiB": (16_384, 60)}
"""Bytes of a block, and batches in a full run."""

BATCH, QUICK_ROUNDS = 32, 3
SLICE = 8
"""Blocks that a reader of the block store takes at a time; the disk level is asked to read them ahead."""

WAYS = ("write", "read from disk", "read from cache")
BOUNDS = {"write": 2.0, "read from disk": 0.8}
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

    def prefetch(self, names: Sequence[bytes]) -> None:
        self._level.prefetch(names)

    def close(self) -> None:
        self._level.close()


class LMDB:
    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:
        import lmdb

        size = 2 * num_blocks * (sealed_bytes + 8192) + (64 << 20)
        self._environment = lmdb.open(str(folder), map_size=size, metasync=True, sync=True)

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
        folder.mkdir(exist_ok=True)
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
        folder.mkdir(exist_ok=True)
        self._connection = sqlite3.connect(folder / "blobs", isolation_level=None)
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE IF NOT EXISTS blocks (name BLOB PRIMARY KEY, sealed BLOB)")

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


class BareFile:
    """The same bytes into one allocated file; only memory knows the place of each block. The limit of every store."""

    def __init__(self, folder: Path, sealed_bytes: int, num_blocks: int) -> None:
        folder.mkdir(exist_ok=True)
        self._fd = os.open(folder / "blocks", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._fd, 0, num_blocks * sealed_bytes)
        self._sealed_bytes = sealed_bytes
        self._names_file = folder / "names"
        names = self._names_file.read_bytes() if self._names_file.exists() else b""
        self._starts = {names[at : at + 16]: at // 16 * sealed_bytes for at in range(0, len(names), 16)}

    def write(self, blocks: Sequence[SealedBlock]) -> None:
        start = len(self._starts) * self._sealed_bytes
        os.pwritev(self._fd, [block.sealed for block in blocks], start)
        os.fdatasync(self._fd)
        self._starts |= {block.name: start + at * self._sealed_bytes for at, block in enumerate(blocks)}

    def read(self, name: bytes, buffer: memoryview) -> None:
        os.preadv(self._fd, [buffer], self._starts[name])

    def close(self) -> None:
        self._names_file.write_bytes(b"".join(self._starts))
        os.close(self._fd)


OURS, LIMIT = "radixkv", "bare file"
Speeds = dict[str, dict[str, list[float]]]
"""MB/s of each batch, by store and way."""

STORES: dict[str, Callable[[Path, int, int], Store]] = {
    OURS: Ours,
    "LMDB": LMDB,
    "files": Files,
    "SQLite blobs": Blobs,
    "RocksDB": RocksDB,
    LIMIT: BareFile,
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


def measure(folder: Path, data_bytes: int, num_rounds: int, seed: int, skipped: dict[str, str]) -> Speeds:
    """MB/s of every store: each batch's writes, then each batch's reads."""
    sealed_bytes, draw = data_bytes + SEAL_BYTES, random.Random(seed)

    def opened(name: str) -> Store:
        return STORES[name](folder / name.replace(" ", "-"), sealed_bytes, num_rounds * BATCH)

    stores: dict[str, Store] = {}
    for name in STORES:
        try:
            stores[name] = opened(name)
        except ImportError as error:
            skipped[name] = f"{error.name} is not installed"
    batches, blocks = Batches(folder, data_bytes, seed), dict[bytes, bytes]()
    speeds: Speeds = {name: {way: [] for way in WAYS} for name in stores}
    order, progress = list(stores), Progress(f"batches of {data_bytes:,} B", 3 * num_rounds)

    def take_turns(way: str, run: Callable[[Store], None]) -> None:
        for name in order:
            os.sync()  # so that no store pays for pages that another has left to be written
            started_s = time.perf_counter()
            run(stores[name])
            speeds[name][way].append(BATCH * sealed_bytes / 1e6 / (time.perf_counter() - started_s))
        order.append(order.pop(0))
        progress.advance()

    for _ in range(num_rounds):
        batch = batches.next()
        blocks.update((block.name, block.sealed) for block in batch)
        take_turns("write", lambda store, batch=batch: store.write(batch))  # type: ignore[misc]
    buffer = memoryview(bytearray(sealed_bytes))

    def read(names: Sequence[bytes], store: Store) -> None:
        for start in range(0, BATCH, SLICE):
            part = names[start : start + SLICE]
            if isinstance(store, Ours):
                store.prefetch(part)
            for each in part:
                store.read(each, buffer)

    for _ in range(num_rounds):
        for name, store in list(stores.items()):
            store.close()
            leave_page_cache(folder / name.replace(" ", "-"))
            stores[name] = opened(name)
        take_turns(WAYS[1], partial(read, draw.sample(list(blocks), BATCH)))
    for name, store in stores.items():
        for each, sealed in blocks.items():
            store.read(each, buffer)
            assert buffer == sealed, f"{name} returned another block than was written"
    for _ in range(num_rounds):
        take_turns(WAYS[2], partial(read, draw.sample(list(blocks), BATCH)))
    for store in stores.values():
        store.close()
    return speeds


def leave_page_cache(folder: Path) -> None:
    """Have the system forget the pages of a closed store's files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def judge(load: str, speeds: Speeds, skipped: dict[str, str], made: Report) -> None:
    """Add the table, figures and bars of one load."""
    medians = {name: {way: percentile(each[way], 0.5) for way in WAYS} for name, each in speeds.items()}
    best = {way: max(each[way] for name, each in medians.items() if name not in (OURS, LIMIT)) for way in WAYS}
    rows = [
        (name, *(cell for way in WAYS for cell in (f"{each[way]:,.0f}", f"{each[way] / best[way]:.2f}")))
        for name, each in medians.items()
    ]
    rows += [(name, f"skipped: {reason}", *[""] * 5) for name, reason in skipped.items()]
    columns = ("store", *(cell for way in WAYS for cell in (f"{way} MB/s", "/ best other")))
    made.tables.append(Table(f"blocks of {load}, batches of {BATCH}, each durable", columns, rows))
    made.figures[load] = {"median_mb_per_s": medians, "mb_per_s": speeds, "skipped": skipped}
    made.bars += [
        Bar(
            f"{load}: {way}, of the best other",
            medians[OURS][way] / best[way],
            bound,
            "x",
            at_least=True,
            reason=f"{LIMIT}: {medians[LIMIT][way] / best[way]:.2f}x",
        )
        for way, bound in BOUNDS.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    parser = bench_parser("stores", __doc__)
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
