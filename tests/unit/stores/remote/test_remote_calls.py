"""Calls for which there is no connection: every block of them is counted once, by its cause."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from stores_calls import block, names

from radixkv.stores.remote.calls import ReadCall, WriteCall
from radixkv.stores.remote.wire import ClosedError, DeadlineError, WireError
from radixkv.stores.stats import LevelCounters


class Ends:
    """A server that lends connections, each of which ends with an error after so many blocks, and at last none."""

    is_usable = True

    def __init__(self, *ends: tuple[int, WireError]) -> None:
        self._ends = [*ends]
        self.num_closed = self.num_given_back = 0
        self.causes: list[str] = []

    def borrow(self, _until_s: float) -> Any:
        if not self._ends:
            return None
        self._left, self._error = self._ends.pop(0)
        self.num_read_bytes = 0
        return self

    def send(self, *_: Any) -> None: ...

    def read_ok(self, *_: Any) -> bytes:
        if not self._left:
            raise self._error
        self._left -= 1
        self.num_read_bytes += 1
        return block(0).sealed

    read_block = read_ok

    def close(self) -> None:
        self.num_closed += 1

    def give_back(self, _wire: Any) -> None:
        self.num_given_back += 1

    def failed(self, cause: str) -> None:
        self.causes.append(cause)


def closed(*after: int) -> list[tuple[int, WireError]]:
    return [(number, ClosedError("closed")) for number in after]


@pytest.mark.parametrize(
    ("ends", "is_usable", "num_done", "cause"),
    [
        ([], True, 0, "deadline"),
        ([], False, 0, "unavailable"),
        (closed(2), False, 2, "unavailable"),
        (closed(1, 1), True, 2, "deadline"),
        (closed(1, 0, 2, 9), True, 3, ClosedError("closed").cause),
        ([(2, DeadlineError("late"))], True, 2, "deadline"),
        ([(9, WireError("all come"))], True, 5, ""),
    ],
)
@pytest.mark.parametrize("is_write", [False, True])
def test_each_block_is_done_or_counted_by_its_cause(
    ends: list[tuple[int, WireError]], is_usable: bool, num_done: int, cause: str, is_write: bool
) -> None:
    counters, server, until_s = LevelCounters("remote"), Ends(*ends), time.monotonic() + 300
    server.is_usable = is_usable
    received: list[int] = []
    if is_write:
        write = WriteCall([(name, block(0)) for name in names(5)], 3, counters)
        write.run(server, until_s)  # type: ignore[arg-type]
        assert write.num_written == num_done
    else:
        keys, size = list(enumerate(names(5))), len(block(0).sealed)
        read = ReadCall(keys, lambda index, _value: received.append(index), size, 3, counters)
        read.run(server, until_s)  # type: ignore[arg-type]
        assert read.num_hits == num_done
        assert received == list(range(num_done))
    stats = counters.snapshot()
    lost, other = (stats.unwritten, stats.misses) if is_write else (stats.misses, stats.unwritten)
    assert +Counter(lost) == +Counter({cause: 5 - num_done})
    assert not other
    assert server.num_closed + server.num_given_back == min(len(ends), 3)
    assert server.num_given_back == (num_done == 5)
