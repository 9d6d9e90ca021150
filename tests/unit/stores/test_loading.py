"""Blocks on their way from a level: readers that share few rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from radixkv.stores.host import HostLevel, Row
from radixkv.stores.loading import Loader

NUM_NAMES, NUM_ROWS, SLICE = 16, 8, 8
DEADLINE_S = 300.0


class Disk:
    """A level that has every block; those of the second reader once the first one has all rows."""

    def __init__(self) -> None:
        self.may_read_second = threading.Event()

    def use(self, _names: Sequence[bytes]) -> None: ...

    def prefetch(self, _names: Sequence[bytes]) -> None: ...

    def read(self, name: bytes, _buffer: memoryview) -> bool:
        assert name[0] < SLICE or self.may_read_second.wait(DEADLINE_S)
        return True


class Codec:
    """Opens the first reader's blocks once it may."""

    sealed_bytes = 8

    def __init__(self, disk: Disk) -> None:
        self.may_open_first = threading.Event()
        self._disk = disk

    def open_into(self, _keys: object, name: bytes, _sealed: memoryview, _memory: memoryview) -> None:
        if name[0] < SLICE:
            self._disk.may_read_second.set()
            assert self.may_open_first.wait(DEADLINE_S)


def test_a_reader_without_a_row_gets_those_that_another_has_filled_meanwhile() -> None:
    host = HostLevel([Row(slot, memoryview(bytearray(8))) for slot in range(NUM_ROWS)])
    disk, woken = Disk(), threading.Event()
    codec = Codec(disk)
    loader = Loader(host, cast("Any", codec), cast("Any", disk), None, lambda _names: None)
    names = [bytes([number]) for number in range(NUM_NAMES)]
    keys: Any = SimpleNamespace(id=b"keys")
    places: list[int] = []
    load = loader.load(names, keys, DEADLINE_S, woken.set, is_remote=False)
    try:
        while len(places) < NUM_NAMES:
            assert woken.wait(10), (
                f"of {NUM_NAMES} blocks {len(places)} have come, and nobody takes the rows of the rest"
            )
            woken.clear()
            landed = load.take()
            places += [block.place for block in landed]
            host.give_back(block.row for block in landed if block.row)
            codec.may_open_first.set()  # the other reader waits for a row by now
    finally:
        load.cancel()
        loader.close(DEADLINE_S)
    assert sorted(places) == list(range(NUM_NAMES))
    assert host.num_free == NUM_ROWS
