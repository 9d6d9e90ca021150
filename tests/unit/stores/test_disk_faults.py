"""Whatever becomes of the disk or its files costs misses: no error, no wrong block, and the level recovers by itself."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sealed_blocks import FINGERPRINT, BlockMaker

from radixkv.stores.disk import DiskLevel, level
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.errors import StoreError

CHAINS = [[number, 1, 2, number] for number in range(12)]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def maker(tmp_path: Path) -> BlockMaker:
    return BlockMaker(tmp_path / "key")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(maker: BlockMaker, tmp_path: Path, clock: Clock) -> Iterator[DiskLevel]:
    """A level that holds one history."""
    disk = maker.level(tmp_path / "disk", clock=clock)
    assert disk.write(maker.chain([1, 2, 3])) == 3
    yield disk
    disk.check()
    disk.close()


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def crashed(maker: BlockMaker, folder: Path, copy: Path, num_blocks: int = 64) -> Path:
    """The files of a level in use, as a crash leaves them, with rows in the index and in its log. Returns their folder."""
    disk = maker.level(folder, num_blocks)
    for tokens in CHAINS[:6]:
        disk.write(maker.chain(tokens))
    disk._table.index.truncate_log()
    for tokens in CHAINS[6:]:
        disk.write(maker.chain(tokens))
    shutil.copytree(folder, copy)
    disk.close()
    return copy / FINGERPRINT.hex()[:32]


def serves(maker: BlockMaker, folder: Path) -> int:
    """Open a level over damaged files: nothing wrong is returned, and what is written again is found, also after a restart."""
    disk = maker.level(folder)
    num_left = sum(maker.found(disk, tokens) for tokens in CHAINS)
    for _ in range(4):  # a damaged block is noticed when it is read
        for tokens in CHAINS:
            disk.write(maker.chain(tokens))
            maker.found(disk, tokens)
    for _ in range(2):
        assert [maker.found(disk, tokens) for tokens in CHAINS] == [4] * len(CHAINS)
        disk.check()
        disk.close()
        disk = maker.level(folder)
    disk.close()
    return num_left


def test_a_crash_loses_nothing_that_was_written(maker: BlockMaker, tmp_path: Path) -> None:
    crashed(maker, tmp_path / "disk", tmp_path / "copy")
    assert serves(maker, tmp_path / "copy") == 48


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_crash_brings_no_damaged_block_back_in_place_of_the_one_written_after_it(
    maker: BlockMaker, tmp_path: Path, is_listed: bool
) -> None:
    disk = maker.level(tmp_path / "disk")
    assert disk.write(maker.chain([1])) == 1
    if is_listed:
        disk.label(b"n" * 16, b"")
    [entry] = disk._table.tree.entries.values()
    flip(disk._folder.slots, entry.slot * disk._table.slots.slot_bytes + 30)
    assert maker.found(disk, [1]) == 0
    assert disk.write(maker.chain([1])) == 1
    shutil.copytree(tmp_path / "disk", tmp_path / "copy")
    disk.close()
    disk = maker.level(tmp_path / "copy")
    assert maker.found(disk, [1]) == 1
    disk.check()
    disk.close()


def test_a_slot_that_cannot_be_read_at_the_start_costs_its_block_alone(
    maker: BlockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(maker, tmp_path / "disk", tmp_path / "copy")
    real, tried = SlotFile.label, []

    def fail_once(slots: SlotFile, slot: int) -> object:
        tried.append(slot)
        return failing(errno.EIO)() if len(tried) == 1 else real(slots, slot)

    monkeypatch.setattr(SlotFile, "label", fail_once)
    assert 44 <= serves(maker, tmp_path / "copy") < 48
    assert len(tried) > 1


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ (1 << position % 8),)))


def zero_page(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * number)
        file.write(bytes(4096))


def test_an_index_with_one_bad_page_keeps_the_other_rows_also_over_the_next_start(
    maker: BlockMaker, tmp_path: Path
) -> None:
    blocks = maker.chain(list(range(120)))
    disk = maker.level(tmp_path / "disk", 128)
    assert disk.write(blocks) == 120
    disk.close()
    num_left = []
    for page in range((tmp_path / "disk" / FINGERPRINT.hex()[:32] / "index").stat().st_size // 4096):
        shutil.copytree(tmp_path / "disk", tmp_path / str(page))
        zero_page(tmp_path / str(page) / FINGERPRINT.hex()[:32] / "index", page)
        for _ in range(2):
            disk = maker.level(tmp_path / str(page), 128)
            disk.check()
            num_left.append(sum(block.name in disk for block in blocks))
            disk.close()
        assert num_left[-2] == num_left[-1], f"page {page}"
    assert any(0 < number < 120 for number in num_left)


@pytest.mark.parametrize("name", ["slots", "index", "index-wal"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "zeroed", "gone", "random", "page zeroed"])
def test_damaged_files_cost_misses(maker: BlockMaker, tmp_path: Path, name: str, damage: str) -> None:
    model = crashed(maker, tmp_path / "disk", tmp_path / "copy")
    path, draw = model / name, random.Random(f"{name} {damage}")
    size = path.stat().st_size
    match damage:
        case "flipped":
            for _ in range(20):
                flip(path, draw.randrange(size))
        case "cut":
            os.truncate(path, size * 2 // 3 + 5)
        case "zeroed":
            path.write_bytes(bytes(size))
        case "gone":
            path.unlink()
        case "random":
            path.write_bytes(draw.randbytes(size))
        case "page zeroed":
            zero_page(path, 1)
    serves(maker, tmp_path / "copy")


@pytest.mark.parametrize("name", ["slots", "index", "index-wal"])
def test_a_flipped_byte_anywhere_costs_misses(maker: BlockMaker, tmp_path: Path, name: str) -> None:
    crashed(maker, tmp_path / "disk", tmp_path / "crashed")
    draw = random.Random(name)
    for turn in range(12):
        copy = tmp_path / f"copy {turn}"
        shutil.copytree(tmp_path / "crashed", copy)
        path = copy / FINGERPRINT.hex()[:32] / name
        flip(path, draw.randrange(min(path.stat().st_size, 60_000)))
        disk = maker.level(copy)
        for tokens in CHAINS:
            maker.found(disk, tokens)
        assert disk.write(maker.chain([99])) == 1
        disk.check()
        disk.close()


def test_swapped_slots_are_misses(maker: BlockMaker, tmp_path: Path) -> None:
    model = crashed(maker, tmp_path / "disk", tmp_path / "copy")
    content = (model / "slots").read_bytes()
    slots = [content[at : at + 1536] for at in range(0, len(content), 1536)]
    slots[0], slots[5] = slots[5], slots[0]
    (model / "slots").write_bytes(b"".join(slots))
    assert serves(maker, tmp_path / "copy") < 48


def test_yesterdays_index_with_todays_slots(maker: BlockMaker, tmp_path: Path) -> None:
    disk = maker.level(tmp_path / "disk", 16)
    for tokens in CHAINS[:3]:
        disk.write(maker.chain(tokens))
    disk.close()
    shutil.copytree(tmp_path / "disk", tmp_path / "yesterday")
    disk = maker.level(tmp_path / "disk", 16)
    for tokens in CHAINS[3:]:
        disk.write(maker.chain(tokens))
    disk.close()
    for folder, other in (("disk", "yesterday"), ("yesterday", "disk")):
        mixed = tmp_path / f"index of {folder}"
        shutil.copytree(tmp_path / folder, mixed)
        shutil.copy(tmp_path / other / FINGERPRINT.hex()[:32] / "slots", mixed / FINGERPRINT.hex()[:32] / "slots")
        disk = maker.level(mixed, 16)
        for tokens in CHAINS:
            maker.found(disk, tokens)
        assert disk.write(maker.chain([77])) == 1
        assert maker.found(disk, [77]) == 1
        disk.check()
        disk.close()


def test_files_of_another_model_block_size_or_version_are_not_used(maker: BlockMaker, tmp_path: Path) -> None:
    other = BlockMaker(tmp_path / "key", fingerprint=b"\xff" * 32)
    disk = other.level(tmp_path / "disk")
    disk.write(other.chain([1, 2]))
    disk.close()
    shutil.copytree(tmp_path / "disk" / ("ff" * 16), tmp_path / "disk" / FINGERPRINT.hex()[:32])
    assert serves(maker, tmp_path / "disk") == 0
    larger = BlockMaker(tmp_path / "key", 3000)
    disk = larger.level(tmp_path / "disk")
    assert disk.stats().num_blocks == 0
    disk.close()
    index = sqlite3.connect(tmp_path / "disk" / FINGERPRINT.hex()[:32] / "index")
    index.execute("PRAGMA user_version = 99")
    index.close()
    assert serves(maker, tmp_path / "disk") == 0


def test_an_index_that_another_program_has_open_is_a_clear_error(maker: BlockMaker, tmp_path: Path) -> None:
    maker.level(tmp_path / "disk").close()
    index = sqlite3.connect(tmp_path / "disk" / FINGERPRINT.hex()[:32] / "index", isolation_level=None)
    index.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match=r"--disk-cache .*locked"):
        maker.level(tmp_path / "disk")
    index.close()
    maker.level(tmp_path / "disk").close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_failing_write_rests_and_recovers_while_reads_go_on(
    opened: DiskLevel, maker: BlockMaker, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(number))
        assert opened.write(maker.chain([5, 6])) == 0
        assert opened.write(maker.chain([5, 6])) == 0
        stats = opened.stats()
        assert (stats.breaker, dict(stats.faults)) == ("open", {errno.errorcode[number]: 1})
        assert dict(stats.unwritten) == {"fault": 2, "resting": 2}
        assert maker.found(opened, [1, 2, 3]) == 3
        opened.check()
        clock.now_s += 1
        assert opened.write(maker.chain([5, 6])) == 0
        assert opened.stats().faults == {errno.errorcode[number]: 2}
    clock.now_s += 5
    assert opened.write(maker.chain([5, 6])) == 2
    assert opened.stats().breaker == "closed"
    assert maker.found(opened, [5, 6]) == 2


def test_a_write_that_is_cut_short_stores_nothing(
    opened: DiskLevel, maker: BlockMaker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: whole(fd, buffers[:1], offset))
    assert opened.write(maker.chain([5, 6])) == 0
    monkeypatch.undo()
    clock.now_s += 1
    assert opened.write(maker.chain([5, 6])) == 2


def test_a_failing_read_is_a_miss_and_rests(
    opened: DiskLevel, maker: BlockMaker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", failing(errno.EIO))
        assert maker.found(opened, [1, 2, 3]) == 0
        patched.undo()
        buffer = memoryview(bytearray(maker.sealed_bytes))
        third = maker.names([1, 2, 3])[2]
        assert not opened.read(third, buffer)
        assert dict(opened.stats().misses) == {"EIO": 1, "resting": 1}
        clock.now_s += 1
        assert opened.read(third, buffer)
    assert opened.stats().breaker == "closed"
    assert opened.write(maker.chain([1, 2, 3])) == 3
    assert maker.found(opened, [1, 2, 3]) == 3


def test_slow_reads_rest_the_level(
    opened: DiskLevel, maker: BlockMaker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level, "SLOW_S", 0.0)
    assert maker.found(opened, [1, 2, 3]) == 1
    assert opened.stats().misses == {"resting": 1}
    monkeypatch.setattr(level, "SLOW_S", 60.0)
    clock.now_s += 1
    assert maker.found(opened, [1, 2, 3]) == 3


def test_a_hanging_write_holds_up_no_reader(
    opened: DiskLevel, maker: BlockMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    sync = os.fdatasync

    def hang(fd: int) -> None:
        hangs.set()
        assert goes_on.wait(300)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", hang)
    monkeypatch.setattr(level, "ERASE_S", 0.05)
    writer = threading.Thread(target=opened.write, args=[maker.chain([1, 2, 9])])
    writer.start()
    assert hangs.wait(300)
    assert maker.found(opened, [1, 2, 9]) == 2
    opened.use(maker.names([1, 2, 3]))
    opened.forget(maker.names([1, 2, 3])[2])
    assert maker.names([1, 2, 9])[2] not in opened
    assert opened.stats().num_blocks == 2
    assert not opened.erase(maker.keys.of("alice").id)
    assert opened.stats().num_blocks == 0
    goes_on.set()
    writer.join()
    assert opened.stats().num_blocks == 0, "what was erased while it was written is not stored"
    monkeypatch.undo()
    assert opened.erase(maker.keys.of("alice").id)


@pytest.mark.parametrize("error", ["database or disk is full", "disk I/O error"])
def test_a_failing_commit_rests_and_recovers(opened: DiskLevel, maker: BlockMaker, clock: Clock, error: str) -> None:
    class Failing:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection = connection

        def execute(self, statement: str, *parameters: object) -> object:
            if statement == "COMMIT":
                raise sqlite3.OperationalError(error)
            return self._connection.execute(statement, *parameters)

        def __getattr__(self, name: str) -> object:
            return getattr(self._connection, name)

    opened.use(maker.names([1, 2, 3]))
    opened.forget(maker.names([1, 2, 3])[2])
    connection = opened._table.index._connection
    opened._table.index._connection = Failing(connection)  # type: ignore[assignment]
    assert opened.write(maker.chain([5, 6])) == 0
    opened.check()
    assert opened.stats().breaker == "open"
    clock.now_s += 1
    assert opened.write(maker.chain([5, 6])) == 2
    assert [maker.found(opened, tokens) for tokens in ([1, 2, 3], [5, 6])] == [2, 2]


def test_an_index_that_is_damaged_in_use_is_written_again(maker: BlockMaker, tmp_path: Path, clock: Clock) -> None:
    disk = maker.level(tmp_path / "disk", clock=clock)
    for tokens in CHAINS:
        disk.write(maker.chain(tokens))
    disk._table.index.truncate_log()
    index = tmp_path / "disk" / FINGERPRINT.hex()[:32] / "index"
    index.write_bytes(bytes(index.stat().st_size))
    disk._table.index._connection.execute("PRAGMA shrink_memory")
    for turn in range(4):
        disk.write(maker.chain([50, turn]))
        clock.now_s += 5
    disk.check()
    assert [maker.found(disk, tokens) for tokens in CHAINS] == [4] * len(CHAINS)
    assert maker.found(disk, [50, 3]) == 2
    disk.close()
    disk = maker.level(tmp_path / "disk")
    assert [maker.found(disk, tokens) for tokens in CHAINS] == [4] * len(CHAINS)
    disk.close()


def test_a_disk_that_fills_up_keeps_its_blocks_and_grows_once_there_is_room(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = BlockMaker(tmp_path / "key", 500_000)
    disk = large.level(tmp_path / "disk", 40, clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        for number in range(15):
            assert disk.write(large.chain([number])) == 1
            disk.check()
        assert 7 <= disk.stats().num_blocks <= 8
        assert disk.stats().faults == {"ENOSPC": 1}
    clock.now_s += 31
    for number in range(15):
        disk.write(large.chain([number]))
    assert disk.stats().num_blocks == 15
    disk.close()


def test_a_full_disk_at_the_first_start_is_a_clear_error(
    maker: BlockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        with pytest.raises(StoreError, match=r"--disk-cache .* No space left on device"):
            maker.level(tmp_path / "disk")
    maker.level(tmp_path / "disk").close()


def test_threads_read_use_forget_and_erase_while_others_write(maker: BlockMaker, tmp_path: Path) -> None:
    disk = maker.level(tmp_path / "disk", 32)
    until_s = time.monotonic() + 2
    wrong: list[BaseException] = []

    def run(act: Callable[[random.Random], object], seed: int) -> None:
        draw = random.Random(seed)
        try:
            while time.monotonic() < until_s:
                act(draw)
        except BaseException as error:
            wrong.append(error)

    def write(draw: random.Random) -> None:
        disk.write(maker.chain(draw.choices(range(3), k=4), draw.choice(["alice", "bob"])))

    def read(draw: random.Random) -> None:
        tokens, namespace = draw.choices(range(3), k=4), draw.choice(["alice", "bob"])
        maker.found(disk, tokens, namespace)
        disk.use(maker.names(tokens, namespace))

    def erase(draw: random.Random) -> None:
        time.sleep(draw.random() / 5)
        erased = maker.keys.erase("bob")
        assert disk.erase(erased.id)
        assert erased.id not in disk.namespace_ids()

    threads = [
        threading.Thread(target=run, args=args) for args in ((write, 1), (write, 2), (read, 3), (read, 4), (erase, 5))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    disk.check()
    assert disk.stats().faults.keys() <= {"seal"}
    disk.close()
