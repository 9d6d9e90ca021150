"""What leaves the tree is told to who looks at it: as it leaves, over restarts of the service, and to nobody who has gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from tree_stack import store

from radixkv import PoolShape, connect, pack_tokens
from radixkv.client import RemoteReader
from radixkv.core.errors import RadixKVError
from radixkv.gateway.pages.cache_view import removals
from radixkv.gateway.pages.cache_view.removals import Removals
from radixkv.service import ServiceConfig, ServiceThread

SHAPE = PoolShape(16, 4)


class Watch:
    """Follows a pool; what it is told, and the readers that it opened."""

    def __init__(self, address: str) -> None:
        self.told: SimpleQueue[list[int]] = SimpleQueue()
        self.readers: list[RemoteReader] = []
        self.following = threading.Event()
        before = set(threading.enumerate())

        def opened() -> RemoteReader:
            reader = RemoteReader(address)
            self.readers.append(reader)
            return reader

        self.removals = Removals(opened, self._tell)
        (self.thread,) = (one for one in set(threading.enumerate()) - before if one.name == "radixkv-cache-events")

    def _tell(self, block_ids: Sequence[int]) -> None:
        self.told.put(list(block_ids))

    def heard_of(self, drop: Callable[[], object]) -> list[int]:
        """What is told of a drop that is repeated until something is."""
        for _ in range(3000):
            drop()
            try:
                return self.told.get(timeout=0.1)
            except Empty:
                continue
        raise AssertionError("nothing was told")


def is_closed(reader: RemoteReader) -> bool:
    try:
        reader.stats()
    except RadixKVError as error:
        return str(error).endswith("is closed")
    return False


def test_what_is_dropped_is_told_over_restarts_of_the_service_and_no_reader_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "RETRY_S", 0.05)
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/service",))
    (address,) = config.addresses

    def dropped() -> list[int]:
        with connect(address, SHAPE) as holder:

            def drop() -> None:
                store(holder, list(range(8)))
                holder.evict(2)

            return watch.heard_of(drop)

    with ServiceThread(config):
        watch = Watch(address)
        assert len(dropped()) == 2
    with ServiceThread(config):
        assert len(dropped()) == 2
        assert watch.readers[1:], "the first was of the service that has gone"
        watch.removals.close()
        watch.thread.join(300)
        assert all(map(is_closed, watch.readers))


def test_the_blocks_that_leave_are_told_in_their_order_and_who_closes_ends_at_once_though_the_pool_lives(
    tmp_path: Path,
) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/service",))
    with ServiceThread(config), connect(config.addresses[0], SHAPE) as holder:
        watch = Watch(config.addresses[0])

        def drop() -> None:
            store(holder, list(range(8)))
            holder.evict(2)

        watch.heard_of(drop)
        store(holder, [9] * 4)
        holder.evict_branch([9] * 4)
        while len(watch.told.get(timeout=300)) > 1:  # of the drops before
            pass
        first, second = [1, 2, 3, 4], [5, 6, 7, 8]
        store(holder, first)
        store(holder, second)
        blocks = {node.tokens: list(node.block_ids) for node in holder.dump()}
        holder.evict_branch(second)
        holder.evict_branch(first)
        assert [watch.told.get(timeout=300) for _ in range(2)] == [
            blocks[pack_tokens(second)],
            blocks[pack_tokens(first)],
        ]
        watch.removals.close()
        watch.thread.join(300)
        assert not watch.thread.is_alive()
        assert all(map(is_closed, watch.readers))


def test_who_has_closed_is_told_nothing_and_waits_for_no_service(tmp_path: Path) -> None:
    watch = Watch(f"unix:{tmp_path}/nobody")
    watch.removals.close()
    watch.removals.close()
    watch.thread.join(300)
    assert not watch.thread.is_alive()
    assert watch.told.empty()


def test_while_nobody_serves_it_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "RETRY_S", 30)
    watch = Watch(f"unix:{tmp_path}/nobody")
    while not watch.readers or not is_closed(watch.readers[0]):
        assert len(watch.readers) <= 1
    assert len(watch.readers) == 1
    watch.removals.close()
    watch.thread.join(300)
    assert not watch.thread.is_alive()
