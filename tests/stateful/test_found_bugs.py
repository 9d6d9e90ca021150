"""Every bug that the machine has found, as the shortest history that showed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from radixkv.core.api import AcquireOp, InsertOp, ReleaseOp
from radixkv.core.tokens import pack_tokens

from .machine.driver import CacheDriver
from .test_in_process import InProcess

OpenDriver = Callable[[int, int], CacheDriver]


@pytest.fixture
def open_driver() -> Iterator[OpenDriver]:
    """Opens a driver on a pool of (num_blocks, block_size), and ends its sequences when the test is over."""
    drivers: list[CacheDriver] = []

    def open_one(num_blocks: int, block_size: int) -> CacheDriver:
        drivers.append(CacheDriver(InProcess(), num_blocks, block_size))
        return drivers[-1]

    yield open_one
    for driver in drivers:
        driver.end()


def acquire(driver: CacheDriver, seq_id: int, tokens: list[int], reserve: int = 0) -> None:
    driver.carry([AcquireOp(pack_tokens(tokens), reserve, seq_id=seq_id)])


def compute(driver: CacheDriver, seq_id: int) -> None:
    """Compute all that there is room for, and publish it."""
    life = driver.worker.sequences[seq_id]
    driver.worker.compute(life, len(life.tokens))
    driver.carry([InsertOp(seq_id, life.num_computed)])


def serve(driver: CacheDriver, seq_id: int, tokens: list[int]) -> None:
    """Leave this history in the cache."""
    acquire(driver, seq_id, tokens)
    compute(driver, seq_id)
    driver.carry([ReleaseOp(seq_id)])


def test_after_a_clear_open_sequences_announce_nothing(open_driver: OpenDriver) -> None:
    driver = open_driver(8, 2)
    number = driver.holder.events()[-1].sequence_number + 1
    acquire(driver, 1, [1, 2])
    driver.clear("default")
    compute(driver, 1)
    driver.carry([ReleaseOp(1)])
    assert [event.kind for event in driver.holder.events(number)] == ["cleared"]


@pytest.mark.parametrize("cached", [[1] * 6, [1] * 7])
def test_what_fits_the_pool_alone_fits_upon_a_partly_filled_block(open_driver: OpenDriver, cached: list[int]) -> None:
    driver = open_driver(4, 4)
    serve(driver, 1, cached)
    assert driver.must_fit("default", 16)
    acquire(driver, 2, [1] * 6, reserve=10)
    assert driver.oracle.branches[2].num_stored == 6


def test_kept_tokens_stay_when_what_covered_them_is_withdrawn(open_driver: OpenDriver) -> None:
    driver = open_driver(4, 3)
    acquire(driver, 1, [0, 0])
    acquire(driver, 2, [0, 0, 0])
    compute(driver, 1)
    compute(driver, 2)
    driver.carry([ReleaseOp(1, keep=True)])
    driver.carry([ReleaseOp(2, keep=False)])
    assert driver.match("default", (0, 0, 0)) == 2


def test_a_dropped_copy_is_not_counted(open_driver: OpenDriver) -> None:
    driver = open_driver(1, 4)
    serve(driver, 1, [0, 1])
    acquire(driver, 2, [0, 2])
    assert driver.oracle.branches[2].num_stored == 1
    assert driver.snapshot.stats.num_copied_tokens == 0


def test_kept_tokens_stay_when_their_node_gives_way_to_a_tail_that_fills(open_driver: OpenDriver) -> None:
    driver = open_driver(8, 3)
    acquire(driver, 1, [0, 1, 0])
    first = driver.worker.sequences[1]
    driver.worker.compute(first, 1)
    driver.carry([InsertOp(1, 1)])
    serve(driver, 2, [0, 1, 0])
    compute(driver, 1)
    driver.carry([ReleaseOp(1, keep=False)])
    assert driver.match("default", (0, 1, 0)) == 3


def test_a_short_hot_prefix_does_not_keep_its_cold_continuation_young(open_driver: OpenDriver) -> None:
    driver = open_driver(16, 2)
    serve(driver, 1, [0, 0, 1, 0, 2, 0])
    serve(driver, 2, [1, 0])
    serve(driver, 3, [0, 0])
    acquire(driver, 4, [0, 0, 2])
    driver.evict(2)
    assert driver.match("default", (1, 0)) == 2
    assert driver.match("default", (0, 0, 1, 0)) == 2


def test_a_clear_counts_what_the_end_of_its_pins_frees(open_driver: OpenDriver) -> None:
    driver = open_driver(8, 3)
    acquire(driver, 1, [0])
    compute(driver, 1)
    driver.pin("default", (0,))
    serve(driver, 2, [0, 1])
    driver.carry([ReleaseOp(1)])
    driver.clear("default")
    assert driver.snapshot.stats.num_free_blocks == 8
