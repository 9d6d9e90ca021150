"""Clearings and drops at the same time as other changes: what was stored before them does not come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sealed_blocks import BlockMaker
from waiting import wait_until

from radixkv.core.namespaces import derived_namespace
from radixkv.stores import saving
from radixkv.stores.disk import level
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.host import HostLevel, Row
from radixkv.stores.remote import RemoteLevel
from radixkv.stores.remote.journal import Journal
from radixkv.stores.saving import Unsaved
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.stats import LevelCounters
from radixkv.stores.store import BlockStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def open_store(folder: Path, remote: Any = None) -> BlockStore:
    maker = BlockMaker(folder / "key")
    host = HostLevel([Row(slot, memoryview(bytearray(1000))) for slot in range(4)], 2)
    disk = maker.level(folder / "disk")
    return BlockStore(maker.keys, maker.fingerprint, host, adapters={}, disk=disk, remote=remote, save_rate=1e9)


def save(store: BlockStore, namespace: str) -> bytes:
    """Store one block. Returns its name."""
    keys, name = store.keys.of(namespace), namespace.encode().ljust(16)[:16]
    assert store.save_now([store.root(keys, ""), name], keys, [memoryview(bytearray(1000))], [1]) == 1
    return name


def test_a_clearing_during_another_is_one_of_its_own_and_nothing_is_found_until_it_ends(store: BlockStore) -> None:
    erasing, may_go_on = threading.Event(), threading.Event()
    names = {namespace: save(store, namespace) for namespace in ("alice", "bob")}

    def hold(_namespace_id: bytes) -> None:
        erasing.set()
        assert may_go_on.wait(300)

    store.on_erased = hold
    (first, is_first), (same, is_second) = store.begin_clear("alice"), store.begin_clear("alice")
    assert (is_first, is_second, first is same) == (True, False, True)
    store.clear("alice")
    assert erasing.wait(300)
    later, is_first = store.begin_clear("alice")
    assert is_first
    may_go_on.set()
    first.result(300)
    wait_until(lambda: not store.is_saved(names["alice"]))
    store.on_erased = lambda _namespace_id: None
    done = threading.Event()
    store._chores.submit(done.set)  # behind the first one
    assert done.wait(300)
    assert store.is_clearing("alice")
    assert store.is_clearing(derived_namespace("alice", salt="x"))
    assert not store.is_clearing("bob")
    assert not later.done()
    store.clear("alice")
    later.result(300)
    wait_until(lambda: not store.is_clearing("alice"))
    assert store.is_saved(names["bob"])
    assert not store.is_saved(names["alice"])


def clear(store: BlockStore, namespace: str) -> None:
    done, is_first = store.begin_clear(namespace)
    assert is_first
    store.clear(namespace)
    done.result(300)


def test_what_is_saved_while_keys_are_replaced_is_erased_by_the_next_clearing(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    erase, names = StoreKeys.erase, []

    def erase_and_save(keys: StoreKeys, namespace: str) -> Any:
        erased = erase(keys, namespace)
        names.append(save(store, namespace))
        return erased

    with monkeypatch.context() as patch:
        patch.setattr(StoreKeys, "erase", erase_and_save)
        store.erase("alice")
    assert store.is_saved(names[0])
    clear(store, "alice")
    wait_until(lambda: not store.is_saved(names[0]))


class Remote:
    """A remote level that only erases."""

    def __init__(self) -> None:
        self.erased: list[bytes] = []

    def begin_erase(self, _namespace_id: bytes, _point: bytes) -> None:
        pass

    def erase(self, namespace_id: bytes, _point: bytes, _deadline_s: float) -> bool:
        self.erased.append(namespace_id)
        return True

    def write_many(self, _blocks: object) -> int:
        return 0

    def follow_tombstones(self, _on_tombstones: object) -> None:
        pass

    def await_tombstones(self, _timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


def test_a_clearing_erases_what_other_workers_have_put_into_the_remote_level(tmp_path: Path) -> None:
    remote = Remote()
    store = open_store(tmp_path, remote)
    try:
        store.erase("alice")
        others = store.keys.of("alice").id
        clear(store, "alice")
        assert store.keys.of("alice").id != others
        wait_until(lambda: others in remote.erased)
    finally:
        store.close()


def test_an_erasure_that_is_answered_reaches_the_remote_level_even_if_the_worker_ends_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.stores.store._FIRST_ERASURES_S", 0.0)

    def end(_namespace_id: bytes) -> None:
        raise KeyboardInterrupt

    def open_remote() -> RemoteLevel:
        return RemoteLevel(f"unix://{tmp_path}/no_server", bytes(32), 1000, tmp_path / "pending")

    answered, store = threading.Event(), open_store(tmp_path, open_remote())
    store.on_erased = end
    with pytest.raises(KeyboardInterrupt):
        store.erase("alice", answered.set)
    assert answered.is_set()
    store.close()
    deletions = Journal(tmp_path / "pending", f"unix://{tmp_path}/no_server", LevelCounters("remote")).read()
    assert [store.keys.point_of(each.value) is not None for each in deletions] == [True]


@pytest.fixture
def may_write(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The disk hangs until this is set."""
    assert store.disk is not None
    monkeypatch.setattr(saving, "_STALL_S", 0.0)
    sync, go_on = SlotFile.sync, threading.Event()

    def hang(slots: SlotFile) -> None:
        go_on.wait(300)
        sync(slots)

    monkeypatch.setattr(SlotFile, "sync", hang)
    yield go_on
    go_on.set()


def begin_to_save(store: BlockStore, namespace: str) -> tuple[bytes, bytes]:
    """Give the store one block, whose write hangs. Returns the names of its parent and its own."""
    keys, name, (row,) = store.keys.of(namespace), namespace.encode().ljust(16)[:16], store.host.take(1)
    root = store.root(keys, "")
    store.save([Unsaved(name, root, keys, row)])
    assert store.disk is not None
    wait_until(store.disk._writing.locked)
    return root, name


@pytest.mark.parametrize("way", ["drop", "clear"])
def test_a_write_that_hangs_brings_nothing_back_that_was_dropped_meanwhile(
    store: BlockStore, may_write: threading.Event, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(level, "ERASE_S", 0.01)
    namespace = derived_namespace("alice", salt="x")
    root, name = begin_to_save(store, namespace)
    if way == "drop":
        store.drop(store.keys.of(namespace).id, [root])
        wait_until(lambda: name not in store.host)
    else:
        clear(store, namespace)
    may_write.set()
    assert store.flush(300)
    wait_until(lambda: not store.is_saved(name))
    assert store.disk is not None
    store.disk.close()
    assert name not in store.disk


def test_a_clearing_waits_for_no_namespace_that_a_disk_that_hangs_is_to_know(
    store: BlockStore, may_write: threading.Event
) -> None:
    begin_to_save(store, "alice")
    for number in range(20):
        store.keys_of(f"tenant-{number}")
    clear(store, "alice")
    assert not may_write.is_set()
    may_write.set()
