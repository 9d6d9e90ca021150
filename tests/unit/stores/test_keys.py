"""The key file: equal keys from equal files, and none for what was erased."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from hashlib import blake2b
from pathlib import Path

import pytest

from radixkv.stores.errors import StoreKeyError
from radixkv.stores.secrets.keys import StoreKeys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "key"


def test_the_file_is_made_at_first_start_for_its_owner_alone(path: Path) -> None:
    umask = os.umask(0)
    try:
        first = StoreKeys(path).of("alice")
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert StoreKeys(path).of("alice") == first
    assert [len(field) for field in first] == [16, 32, 32, 10, 32]


def test_two_hosts_with_copies_derive_equal_keys_and_two_files_share_nothing(path: Path, tmp_path: Path) -> None:
    keys = StoreKeys(path)
    shutil.copy(path, tmp_path / "copy")
    namespaces = ["alice", "bob", "", "élan", "a" * 500]
    assert [keys.of(each) for each in namespaces] == [StoreKeys(tmp_path / "copy").of(each) for each in namespaces]
    other = StoreKeys(tmp_path / "other")
    fields = [field for each in namespaces for made in (keys, other) for field in made.of(each)]
    assert len(set(fields)) == len(fields)


def test_an_erased_generation_cannot_be_derived_again(path: Path) -> None:
    keys = StoreKeys(path)
    bob, before = keys.of("bob"), keys.of("alice")
    assert keys.erase("alice") == before
    for now in (keys, StoreKeys(path)):
        after = now.of("alice")
        assert set(after).isdisjoint(before)
        assert now.of("bob") == bob
        assert now.erased([before.id, after.id, bob.id, b"id of other file"]) == {before.id}
        assert now.puncture(before.point) is None


def test_the_file_no_longer_holds_a_seed_on_the_way_to_what_was_erased(path: Path) -> None:
    keys = StoreKeys(path)
    seeds = [keys._state.cover.nodes[0].seed]
    node = keys._state.cover.nodes[0]
    point = int.from_bytes(keys.of("alice").point, "big")
    while node.depth < 80:
        node = next(child for child in node.children() if point < child.end)
        seeds.append(node.seed)
    keys.erase("alice")
    content = path.read_bytes()
    assert not [seed for seed in seeds if seed in content]


def test_the_replaced_content_is_overwritten_but_not_that_of_another_link(path: Path, tmp_path: Path) -> None:
    keys = StoreKeys(path)
    with path.open("rb") as old:
        keys.erase("alice")
        assert not any(old.read())
    os.link(path, tmp_path / "backup")
    keys.erase("alice")
    assert any((tmp_path / "backup").read_bytes())


def test_erasing_one_namespace_many_times_leaves_a_small_file(path: Path) -> None:
    keys = StoreKeys(path)
    erased = {keys.erase("alice").id for _ in range(100)}
    assert StoreKeys(path).erased(erased) == erased
    assert len(erased) == 100
    assert path.stat().st_size < 4000


def test_a_namespace_whose_generations_are_all_erased_has_keys_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.stores.secrets.keys.GENERATION_BITS", 8)
    keys = StoreKeys(path)
    erased = {keys.erase("alice").id for _ in range(600)}
    assert len(erased) == 600
    assert keys.erased([*erased, keys.of("alice").id]) == erased


def test_the_list_of_erased_ids_of_an_earlier_version_is_passed_over(path: Path) -> None:
    alice = StoreKeys(path).of("alice")
    body = path.read_bytes()[:-32]
    counts_at = len(b"radixkv store key 1\n") + 32
    body = body[: counts_at + 3] + b"\x02" + body[counts_at + 4 : counts_at + 8] + bytes(32) + body[counts_at + 8 :]
    path.write_bytes(body + blake2b(body, digest_size=32, person=b"radixkv key file").digest())
    keys = StoreKeys(path)
    assert keys.erase("alice") == alice
    assert StoreKeys(path).of("alice") == keys.of("alice")


def test_a_tombstone_carries_an_erasure_to_a_host_with_a_copy(path: Path, tmp_path: Path) -> None:
    keys = StoreKeys(path)
    shutil.copy(path, tmp_path / "copy")
    other = StoreKeys(tmp_path / "copy")
    erased = keys.erase("alice")
    assert other.of("alice") == erased
    assert other.puncture(erased.point) == erased.id
    assert other.of("alice") == keys.of("alice")
    assert StoreKeys(tmp_path / "copy").erased([erased.id])
    with pytest.raises(StoreKeyError, match="10 bytes, and this one has 3"):
        keys.puncture(b"abc")


def test_processes_that_share_a_file_see_each_others_erasures_and_lose_none(path: Path) -> None:
    one, two = StoreKeys(path), StoreKeys(path)
    before = [one.of("alice"), one.of("bob")]
    assert one.erase("alice") == before[0]
    assert two.of("alice") == one.of("alice") != before[0]
    assert two.erase("bob") == before[1]
    for keys in (one, two, StoreKeys(path)):
        assert keys.erased(each.id for each in before) == {each.id for each in before}


def test_threads_that_erase_at_once_lose_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.stores.secrets.keys.LOCK_S", 300.0)
    made = [StoreKeys(path) for _ in range(3)]
    erased: list[bytes] = []

    def erase(number: int) -> None:
        for turn in range(10):
            erased.append(made[number].erase(f"namespace {turn % 4}").id)
            made[number].of("other")

    threads = [threading.Thread(target=erase, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(erased)) == 30
    assert StoreKeys(path).erased(erased) == set(erased)


def test_a_restored_older_file_revives_nothing_in_a_running_process(path: Path, tmp_path: Path) -> None:
    keys = StoreKeys(path)
    shutil.copy(path, tmp_path / "old")
    erased = keys.erase("alice")
    shutil.copy(tmp_path / "old", path)
    assert keys.erased([erased.id])
    keys.erase("bob")
    assert StoreKeys(path).erased([erased.id])


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer", "other", "zeros"])
def test_a_damaged_file_is_refused_and_left_as_it_is(path: Path, damage: str) -> None:
    StoreKeys(path).erase("alice")
    whole = path.read_bytes()
    content = {
        "flipped": whole[:900] + bytes((whole[900] ^ 4,)) + whole[901:],
        "cut": whole[: len(whole) * 2 // 3],
        "empty": b"",
        "longer": whole + b"x",
        "other": b"-----BEGIN PRIVATE KEY-----",
        "zeros": bytes(len(whole)),
    }[damage]
    path.write_bytes(content)
    with pytest.raises(StoreKeyError, match="damaged or no key file"):
        StoreKeys(path)
    assert path.read_bytes() == content


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    StoreKeys(path)
    path.chmod(0o640)
    with pytest.raises(StoreKeyError, match="chmod 600"):
        StoreKeys(path)


def test_a_folder_or_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreKeyError, match=r"--store-key .* cannot be read"):
        StoreKeys(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreKeyError, match=r"--store-key .* cannot be"):
        StoreKeys(tmp_path / "file" / "key")


def test_a_failed_erasure_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = StoreKeys(path)
    before = keys.of("alice"), path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreKeyError, match="No space left"):
            keys.erase("alice")
    assert (keys.of("alice"), path.read_bytes()) == before
    assert not list(path.parent.glob("*.new"))


def test_a_running_process_goes_on_where_the_file_is_gone_but_does_not_make_it_again(
    path: Path,
) -> None:
    keys = StoreKeys(path)
    before = keys.of("alice")
    path.unlink()
    assert keys.of("alice") == before
    with pytest.raises(StoreKeyError, match="cannot be read"):
        keys.erase("alice")
    assert not path.exists()
    StoreKeys(path)
    assert keys.of("alice") == before
    with pytest.raises(StoreKeyError, match="another store"):
        keys.erase("alice")
