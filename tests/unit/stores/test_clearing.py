"""A clearing that is asked for while one is carried out: nothing is found until both are done, and no other waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sealed_blocks import BlockMaker
from waiting import wait_until

from radixkv.core.namespaces import derived_namespace
from radixkv.stores.host import HostLevel, Row
from radixkv.stores.store import BlockStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    maker = BlockMaker(tmp_path / "key")
    host = HostLevel([Row(slot, memoryview(bytearray(1000))) for slot in range(4)], 2)
    opened = BlockStore(
        maker.keys,
        maker.fingerprint,
        host,
        adapters={},
        disk=maker.level(tmp_path / "disk"),
        remote=None,
        save_rate=1e9,
    )
    yield opened
    opened.close()


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
