"""The disk level: what is written is found, also by the next process, and the least recently used leaf makes room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sealed_blocks import FINGERPRINT, BlockMaker

from radixkv import InvalidArgumentError
from radixkv.stores.disk import DiskLevel
from radixkv.stores.errors import StoreError


@pytest.fixture
def maker(tmp_path: Path) -> BlockMaker:
    return BlockMaker(tmp_path / "key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def test_what_is_written_is_found_now_and_after_a_restart(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    assert level.write(maker.chain([1, 2, 3])) == 3
    assert level.write(maker.chain([1, 2, 4])) == 3
    for _ in range(2):
        level.check()
        assert [maker.found(level, tokens) for tokens in ([1, 2, 3], [1, 2, 4], [1, 2, 5], [9])] == [3, 3, 2, 0]
        assert maker.found(level, [1, 2, 3], "bob") == 0
        assert maker.names([1])[0] in level
        assert maker.names([9])[0] not in level
        level.close()
        level = maker.level(folder)
    level.close()


def test_counters_count(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    level.write(maker.chain([1, 2, 3]))
    level.write(maker.chain([1, 2, 3]))
    maker.found(level, [1, 2, 7])
    stats = level.stats()
    assert (stats.num_blocks, stats.num_written, stats.num_hits, dict(stats.misses)) == (3, 3, 2, {"absent": 1})
    assert (stats.used_bytes, stats.written_bytes, stats.read_bytes) == (3 * 1536, 3 * 1040, 2 * 1040)
    assert (stats.level, stats.size_bytes) == ("disk", 64 * 1536)
    assert stats.read_s > 0 < stats.write_s
    assert (dict(stats.faults), stats.breaker, stats.num_evicted) == ({}, "closed", 0)
    level.close()


def test_the_least_recently_used_branch_makes_room_from_its_end(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 16)
    level.write(maker.chain([1, 2, 3, 4]))
    level.write(maker.chain([5, 6, 7, 8]))
    level.use(maker.names([1, 2, 3, 4]))
    for number in range(100, 109):
        assert level.write(maker.chain([number])) == 1
        level.check()
    assert maker.found(level, [1, 2, 3, 4]) == 4
    assert maker.found(level, [5, 6, 7, 8]) == 3
    level.close()


def test_order_of_use_outlives_the_process(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 16)
    for number in range(7):
        level.write(maker.chain([number, number]))
    level.use(maker.names([0, 0]))
    level.close()
    level = maker.level(folder, 16)
    level.check()
    level.write(maker.chain([50, 51, 52, 53]))
    assert [maker.found(level, [number, number]) for number in range(7)] == [2, 0, 2, 2, 2, 2, 2]
    level.close()


def test_a_history_longer_than_the_level_keeps_its_beginning(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 8)
    tokens = list(range(20))
    num_stored = level.write(maker.chain(tokens))
    assert num_stored == 8
    assert maker.found(level, tokens) == num_stored
    assert level.stats().unwritten == {"full": 20 - num_stored}
    level.check()
    assert level.write(maker.chain([40])) == 1
    assert maker.found(level, tokens) == num_stored - 1
    level.close()


def test_a_parent_is_not_evicted_for_the_block_that_follows_it(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 8)
    level.write(maker.chain([1, 2]))
    for number in range(100, 106):
        level.write(maker.chain([number]))
    assert level.write(maker.chain([1, 2, 3])[2:]) == 1
    assert maker.found(level, [1, 2, 3]) == 3
    assert maker.found(level, [100]) == 0
    level.close()


def test_a_block_is_stored_without_its_parent_and_kept_under_it_later(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 8)
    chain = maker.chain([1, 2, 3])
    assert level.write(chain[2:]) == 1
    assert level.write(chain[:2]) == 2
    assert maker.found(level, [1, 2, 3]) == 3
    level.check()
    level.close()


def test_the_files_stay_within_the_size(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 100)
    for number in range(300):
        level.write(maker.chain([number, 1, 2]))
    level.check()
    assert level.stats().num_blocks >= 80
    assert (folder / FINGERPRINT.hex()[:32] / "slots").stat().st_size <= 100 * 1536
    level.close()


def test_files_are_for_their_owner_alone(maker: BlockMaker, folder: Path) -> None:
    umask = os.umask(0)
    try:
        level = maker.level(folder)
        level.write(maker.chain([1]))
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert len(files) == 4
        level.close()
    finally:
        os.umask(umask)


def test_a_second_level_on_one_folder_is_refused_by_name(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    with pytest.raises(StoreError, match=r"--disk-cache .*/disk is in use by another worker"):
        maker.level(folder)
    level.write(maker.chain([1]))
    level.close()
    maker.level(folder).close()


@pytest.mark.parametrize("size", [-5, 0, 1, 1000, 8 * 1695])
def test_a_size_below_eight_blocks_is_rejected_and_makes_nothing(folder: Path, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"--disk-cache is .*:{size}'; it must be at least 13,568 bytes"):
        DiskLevel(folder, size, FINGERPRINT, 1040)
    assert not folder.exists()


def test_a_size_above_the_disk_is_rejected(maker: BlockMaker, folder: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"--disk-cache is .*it must be at most .* bytes, which the disk has left"
    ):
        DiskLevel(folder, 1 << 60, FINGERPRINT, 1040)
    maker.level(folder).close()


def test_a_place_that_cannot_be_written_to_is_a_clear_error(tmp_path: Path, maker: BlockMaker) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/radixkv")):
        with pytest.raises(StoreError, match=f"--disk-cache {folder} cannot be written to"):
            maker.level(folder)


def test_a_block_or_buffer_of_another_length_is_rejected_and_nothing_is_stored(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    chain = maker.chain([1, 2])
    with pytest.raises(InvalidArgumentError, match="sealed is '3 bytes'; it must be 1040 bytes"):
        level.write([chain[0], chain[1]._replace(sealed=b"abc")])
    assert level.stats().num_blocks == 0
    level.write(chain)
    with pytest.raises(InvalidArgumentError, match="buffer is '7 bytes'"):
        level.read(chain[0].name, memoryview(bytearray(7)))
    level.close()


def test_an_erased_namespace_is_gone_and_does_not_come_back_others_stay(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    late = maker.chain([1, 9])
    level.write(maker.chain([1, 2, 3]))
    level.write(maker.chain([1, 2, 3], "bob"))
    erased = maker.keys.of("alice")
    assert level.namespace_ids() == {erased.id, maker.keys.of("bob").id}
    assert level.erase(erased.id)
    assert level.write(late) == 0
    for _ in range(2):
        level.check()
        assert (maker.found(level, [1, 2, 3]), maker.found(level, [1, 2, 3], "bob")) == (0, 3)
        assert level.namespace_ids() == {maker.keys.of("bob").id}
        level.close()
        for path in folder.rglob("*"):
            assert path.is_dir() or erased.id not in path.read_bytes()
        level = maker.level(folder)
    level.close()


def test_a_smaller_size_keeps_what_was_used_last(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 3000)
    for number in range(20):
        level.write(maker.chain([number, 1, 2]))
    level.use(maker.names([3, 1, 2]))
    assert (folder / FINGERPRINT.hex()[:32] / "slots").stat().st_size > 10 * 1536
    level.close()
    level = maker.level(folder, 10)
    level.check()
    assert (folder / FINGERPRINT.hex()[:32] / "slots").stat().st_size == 10 * 1536
    assert [maker.found(level, [number, 1, 2]) for number in (3, 19, 18, 16)] == [3, 3, 3, 0]
    level.close()


def test_order_of_use_outlives_a_smaller_size(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder, 3000)
    for number in range(20):
        level.write(maker.chain([number]))
    last_used = [0, 19, 1, 18, 2, 17, 3, 16, 4, 15]
    for number in last_used:
        level.use(maker.names([number]))
    level.close()
    maker.level(folder, 10).close()  # half of the blocks that stay are moved
    level = maker.level(folder, 10)
    level.write(maker.chain([30, 31, 32, 33, 34, 35]))
    assert [maker.found(level, [number]) for number in last_used] == [0] * 6 + [1] * 4
    level.close()


def test_models_share_the_size_and_the_least_recently_used_is_removed_whole(tmp_path: Path, folder: Path) -> None:
    makers = [BlockMaker(tmp_path / "key", 400_000, bytes((number,)) * 32) for number in range(3)]
    for number in (0, 1):
        level = makers[number].level(folder, 20)
        level.write(makers[number].chain([1, 2]))
        level.close()
    os.utime(folder / ("00" * 16), (5, 5))
    for number in (0, 1):
        level = makers[number].level(folder, 20)
        assert makers[number].found(level, [1, 2]) == 2
        level.close()
    os.utime(folder / ("00" * 16), (5, 5))
    level = makers[2].level(folder, 20)
    level.write(makers[2].chain([1, 2]))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"01" * 16, "02" * 16}
    level.write(makers[2].chain(list(range(15))))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"02" * 16}
    level.check()
    level.close()


def test_after_closing_everything_is_a_miss_and_closing_again_is_harmless(maker: BlockMaker, folder: Path) -> None:
    level = maker.level(folder)
    level.write(maker.chain([1]))
    level.close()
    level.close()
    assert maker.found(level, [1]) == 0
    assert level.write(maker.chain([2])) == 0
    assert level.stats().unwritten == {"closed": 1}
    assert not level.erase(bytes(16))
    level.use(maker.names([1]))
    assert level.stats().misses == {"closed": 1}


def test_a_flood_takes_no_block_of_a_namespace_within_its_share(maker: BlockMaker, folder: Path) -> None:
    """Also after a restart; beyond its share, and where it has none, its blocks go like all others."""
    own, longer = list(range(10, 22)), list(range(50, 90))

    def flood(level: DiskLevel, first: int) -> None:
        for number in range(first, first + 30):
            level.write(maker.chain([1000 + number * 10 + step for step in range(8)], "bob"))
            level.check()

    level = maker.level(folder, 64)
    level.share({maker.keys.of("alice").id: 0.25})
    level.write(maker.chain(own))
    flood(level, 0)
    assert maker.found(level, own) == 12
    level.close()
    level = maker.level(folder, 64)
    level.share({maker.keys.of("alice").id: 0.25})
    flood(level, 100)
    assert maker.found(level, own) == 12
    level.write(maker.chain(longer))
    flood(level, 200)
    assert 12 <= maker.found(level, own) + maker.found(level, longer) <= 20, (
        "of 52: its share, and some of the slots for a next write"
    )
    level.share({})
    flood(level, 300)
    assert maker.found(level, own) + maker.found(level, longer) == 0
    level.close()
