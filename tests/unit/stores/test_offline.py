"""A folder of stored blocks without its worker: listed, checked, trimmed, erased."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sealed_blocks import FINGERPRINT, BlockMaker

from radixkv import InvalidArgumentError
from radixkv.core.namespaces import derived_namespace
from radixkv.stores import offline
from radixkv.stores.disk.folder import LOCK
from radixkv.stores.errors import StoreError
from radixkv.stores.remote.journal import Deletion, Journal
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.stats import LevelCounters


@pytest.fixture
def maker(tmp_path: Path) -> BlockMaker:
    return BlockMaker(tmp_path / "key")


@pytest.fixture
def folder(tmp_path: Path, maker: BlockMaker) -> Path:
    """Two models: one of a single block, then one of five blocks of two namespaces."""
    other = BlockMaker(tmp_path / "key", 3000, b"\xee" * 32)
    for made, histories in ((other, {"bob": [7]}), (maker, {"alice": [1, 2, 3], "bob": [1, 2]})):
        disk = made.level(tmp_path / "disk")
        for namespace, tokens in histories.items():
            disk.write(made.chain(tokens, namespace))
        disk.close()
    os.utime(tmp_path / "disk" / ("ee" * 16), (1, 1))  # a file system's clock may stand still for milliseconds
    return tmp_path / "disk"


def test_models_are_listed_with_their_blocks_by_namespace_id(folder: Path, maker: BlockMaker) -> None:
    alice, bob = maker.keys.of("alice").id.hex(), maker.keys.of("bob").id.hex()
    other, ours = offline.list_models(folder)
    assert (other.folder, other.num_blocks, other.namespaces) == ("ee" * 16, 1, {bob: 1})
    assert (ours.fingerprint, ours.sealed_bytes, ours.num_blocks) == (FINGERPRINT, 1040, 5)
    assert ours.namespaces == {alice: 3, bob: 2}
    assert ours.num_slots >= 8
    assert ours.file_bytes >= ours.num_slots * 1536
    assert ours.used_s >= other.used_s
    level = maker.level(folder)
    assert maker.found(level, [1, 2, 3]) == 3
    level.close()


def test_looking_at_models_is_no_use_of_them(folder: Path) -> None:
    before = [(each.folder, each.used_s) for each in offline.list_models(folder)]
    offline.check(folder)
    assert [(each.folder, each.used_s) for each in offline.list_models(folder)] == before
    assert before[0] == ("ee" * 16, 1)


def test_a_check_opens_the_blocks_of_given_namespaces_and_counts_damage(folder: Path, maker: BlockMaker) -> None:
    checked = {each.folder: each for each in offline.check(folder)}[FINGERPRINT.hex()[:32]]
    assert (checked.num_blocks, checked.num_unopened, checked.num_damaged) == (5, 5, 0)
    level = maker.level(folder)
    slot = level._table.tree.entries[maker.names([1, 2, 3])[1]].slot
    level.close()
    with (folder / FINGERPRINT.hex()[:32] / "slots").open("r+b") as file:
        file.seek(slot * 1536 + 300)
        file.write(b"damage")
    for _ in range(2):
        checked = offline.check(folder, maker.keys, ["alice"])[-1]
        assert (checked.num_blocks, checked.num_opened, checked.num_damaged, checked.num_unopened) == (5, 2, 1, 2)
        assert (checked.num_erased, checked.is_intact) == (0, True)
    maker.keys.erase("alice")
    checked = offline.check(folder, maker.keys, ["alice", "bob"])[-1]
    assert (checked.num_opened, checked.num_damaged, checked.num_erased) == (2, 0, 3)


def test_an_erasure_destroys_the_keys_and_deletes_the_blocks(folder: Path, maker: BlockMaker, tmp_path: Path) -> None:
    erased = maker.keys.of("bob").id
    assert offline.erase(folder, StoreKeys(tmp_path / "key"), "bob") == {"ee" * 16: 1, FINGERPRINT.hex()[:32]: 2}
    assert [model.num_blocks for model in offline.list_models(folder)] == [0, 3]
    with pytest.raises(InvalidArgumentError, match="the owner of the derived ones"):
        offline.erase(folder, maker.keys, derived_namespace("alice", salt="salt"))
    assert [model.num_blocks for model in offline.list_models(folder)] == [0, 3], "no salt takes all of alice's"
    assert maker.keys.erased([erased]) == {erased}
    maker.keys.erase("alice")
    assert offline.erase(folder, maker.keys) == {"ee" * 16: 0, FINGERPRINT.hex()[:32]: 3}


def test_an_erasure_is_left_to_the_next_worker_of_each_remote_level(folder: Path, maker: BlockMaker) -> None:
    def journal(place: str) -> Journal:
        return Journal(maker.keys.pending, place, LevelCounters("remote"))

    for place in ("here", "there"):
        journal(place).close()
    bob, alice = maker.keys.of("bob"), maker.keys.of("alice")
    offline.erase(folder, maker.keys, "bob")
    assert (
        journal("here").read() == [Deletion(False, bob.id, maker.keys.tombstone(bob.point))] == journal("there").read()
    )
    maker.keys.pending.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="the keys are destroyed, but no remote level learns of it"):
        offline.erase(folder, maker.keys, "alice")
    assert maker.keys.erased([alice.id]) == {alice.id}


def test_a_trim_removes_other_models_first_and_then_the_oldest_leaves(folder: Path) -> None:
    size = sum(model.file_bytes for model in offline.list_models(folder))
    assert len(offline.trim(folder, size)) == 2
    (left,) = offline.trim(folder, 8 * 1696)
    assert (left.num_blocks, left.num_slots) == (5, 8)
    with pytest.raises(InvalidArgumentError, match="at least 13,568 bytes"):
        offline.trim(folder, 1000)


def test_what_cannot_be_read_is_listed_as_such(folder: Path, maker: BlockMaker) -> None:
    index = folder / FINGERPRINT.hex()[:32] / "index"
    index.write_bytes(b"no index" * 1000)
    unreadable = {model.folder: model for model in offline.list_models(folder)}[FINGERPRINT.hex()[:32]]
    assert not unreadable.is_readable
    assert unreadable.file_bytes > 0
    assert index.read_bytes().startswith(b"no index"), "listing changes nothing"
    checked = {each.folder: each for each in offline.check(folder, maker.keys)}
    assert [name for name, each in checked.items() if not each.is_intact] == [FINGERPRINT.hex()[:32]]
    assert checked["ee" * 16].num_blocks == 1


def test_what_an_earlier_or_a_later_version_has_stored_is_left_as_it_is(folder: Path, maker: BlockMaker) -> None:
    index = folder / FINGERPRINT.hex()[:32] / "index"
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert [model.is_readable for model in offline.list_models(folder)] == [True, False]
    assert [each.is_intact for each in offline.check(folder, maker.keys, ["alice"])] == [True, False]
    with closing(sqlite3.connect(index)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM blocks").fetchone() == (5,)


def test_a_check_leaves_an_index_alone_of_which_no_row_is_readable(folder: Path, maker: BlockMaker) -> None:
    index = folder / FINGERPRINT.hex()[:32] / "index"
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute("DROP TABLE blocks")
    before = index.read_bytes()
    assert [each.is_intact for each in offline.check(folder, maker.keys, ["alice"])] == [True, False]
    assert index.read_bytes() == before


def test_a_list_of_a_copy_leaves_no_file_in_it(folder: Path) -> None:
    (folder / LOCK).unlink()
    before = sorted(folder.rglob("*"))
    assert len(offline.list_models(folder)) == 2
    assert sorted(folder.rglob("*")) == before


def test_a_folder_of_another_program_is_neither_counted_nor_removed(folder: Path, maker: BlockMaker) -> None:
    theirs = folder / ("ab" * 16)
    theirs.mkdir()
    (theirs / "slots").write_bytes(b"theirs")
    (theirs / "letters").write_bytes(bytes(1_000_000))
    assert theirs.name not in {model.folder for model in offline.list_models(folder)}
    (left,) = offline.trim(folder, 8 * 1696)
    assert left.folder == FINGERPRINT.hex()[:32]
    assert (theirs / "letters").stat().st_size == 1_000_000
    level = maker.level(folder, 8)
    level.write(maker.chain([4, 5, 6], "alice"))
    level.close()
    assert sorted(path.name for path in theirs.iterdir()) == ["letters", "slots"]


def test_a_folder_in_use_or_missing_is_refused(folder: Path, maker: BlockMaker, tmp_path: Path) -> None:
    level = maker.level(folder)
    with pytest.raises(StoreError, match="in use by a worker"):
        offline.list_models(folder)
    level.close()
    with pytest.raises(StoreError, match="is no folder"):
        offline.check(tmp_path / "none")
    assert offline.list_models(tmp_path) == []
