"""After an erasure nothing that was stored opens with the key file as it is then, in the files or in older copies of them."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest
from sealed_blocks import FINGERPRINT, BlockMaker

from radixkv.stores.disk import DiskLevel
from radixkv.stores.errors import SealError
from radixkv.stores.secrets.keys import StoreKeys

NAMESPACES = ("alice", "bob")
HISTORIES = [[number, 1, 2] for number in range(8)]


def opening(folder: Path, maker: BlockMaker, names: dict[bytes, str]) -> set[bytes]:
    """Names of which some slot in a folder opens with any key that the key file yields now."""
    keys = StoreKeys(maker.keys._path)
    found = set()
    out = memoryview(bytearray(maker.data_bytes))
    for path in folder.rglob("slots"):
        content = path.read_bytes()
        for at in range(0, len(content), 1536):
            sealed = content[at : at + maker.sealed_bytes]
            if any(sealed):
                for name in names:
                    for namespace in NAMESPACES:
                        try:
                            maker.sealer.open_into(keys.of(namespace), name, sealed, out)
                        except SealError:
                            continue
                        found.add(name)
    return found


@pytest.fixture
def maker(tmp_path: Path) -> BlockMaker:
    return BlockMaker(tmp_path / "key")


def test_nothing_erased_opens_in_the_files_or_in_an_older_copy_of_them(maker: BlockMaker, tmp_path: Path) -> None:
    disk = maker.level(tmp_path / "disk", 20)
    for tokens in HISTORIES:
        disk.write(maker.chain(tokens))
        disk.write(maker.chain(tokens[:1], "bob"))
    names = {name: each for each in NAMESPACES for tokens in HISTORIES for name in maker.names(tokens, each)}
    shutil.copytree(tmp_path / "disk", tmp_path / "older")
    before = {each: maker.keys.of(each) for each in NAMESPACES}
    opened = opening(tmp_path / "older", maker, names)
    assert {names[name] for name in opened} == set(NAMESPACES)

    erased = maker.keys.erase("alice")
    assert disk.erase(erased.id)
    shutil.copytree(tmp_path / "disk", tmp_path / "after")
    disk.close()
    for folder in ("older", "after", "disk"):
        left = opening(tmp_path / folder, maker, names)
        assert {names[name] for name in left} == {"bob"}
    hidden = {erased.id, *(name for name, namespace in names.items() if namespace == "alice")}
    for folder in ("after", "disk"):
        for path in (tmp_path / folder).rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not [each for each in hidden if each in content], f"{path.name} names what was erased"
    key_file = maker.keys._path.read_bytes()
    assert not [secret for secret in (*before["alice"][1:3], *before["bob"][1:3]) if secret in key_file]
    assert hidden.isdisjoint(maker.names(HISTORIES[0])), "a guessed prompt is not confirmed by an older copy"


def test_a_worker_that_was_away_finds_what_to_erase(maker: BlockMaker, tmp_path: Path) -> None:
    disk = maker.level(tmp_path / "disk")
    disk.write(maker.chain([1, 2, 3]))
    disk.write(maker.chain([1], "bob"))
    disk.close()
    erased = maker.keys.erase("alice")
    keys = StoreKeys(tmp_path / "key")
    disk = maker.level(tmp_path / "disk")
    away = keys.erased(disk.namespace_ids())
    assert away == {erased.id}
    assert disk.erase(*away)
    assert disk.namespace_ids() == {keys.of("bob").id}
    disk.close()


def test_an_erasure_that_fails_is_finished_by_the_next_write(
    maker: BlockMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    disk = maker.level(tmp_path / "disk", clock=lambda: now_s)
    disk.write(maker.chain([1, 2, 3]))
    erased = maker.keys.erase("alice")
    truncate = disk._table.index.truncate_log

    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk._table.index, "truncate_log", fail)
    assert not disk.erase(erased.id)
    assert disk.stats().num_blocks == 0
    monkeypatch.setattr(disk._table.index, "truncate_log", truncate)
    now_s += 60
    assert disk.write(maker.chain([1], "bob")) == 1
    for path in (tmp_path / "disk" / FINGERPRINT.hex()[:32]).iterdir():
        assert erased.id not in path.read_bytes()
    disk.close()


def test_erasures_while_threads_write_and_read_leave_no_trace(maker: BlockMaker, tmp_path: Path) -> None:
    disk = maker.level(tmp_path / "disk", 40)
    is_over, wrong = threading.Event(), []

    def write(disk: DiskLevel, seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not is_over.is_set():
                tokens, namespace = draw.choice(HISTORIES), draw.choice(NAMESPACES)
                disk.write(maker.chain(tokens, namespace))
                maker.found(disk, tokens, namespace)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(disk, seed)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        erased = maker.keys.erase("alice")
        assert disk.erase(erased.id)
        for path in (tmp_path / "disk" / FINGERPRINT.hex()[:32]).iterdir():
            assert erased.id not in path.read_bytes()
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    disk.check()
    disk.close()
