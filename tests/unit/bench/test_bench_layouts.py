"""bench.layouts: virtual ranges over shared pages."""

from __future__ import annotations

import mmap
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bench.common.attention_layer import Workload
from bench.layouts.attention import layouts
from bench.layouts.virtual import HUGE_BYTES, OutOfPagesError, VirtualPool, open_pages
from radixkv.core.errors import InvalidArgumentError

PAGE = mmap.PAGESIZE


def test_a_thousand_openings_forks_and_ends_leave_no_page_or_range_and_no_sequence_sees_anothers_writes() -> None:
    draw = random.Random(1)
    pool = VirtualPool(16, PAGE, 2, 6, 8 * PAGE)
    contents: dict[int, bytes] = {}  # of the second tensor

    def write(slot: int, start: int, end: int) -> None:
        value = draw.randrange(256)
        pool.memory[:, slot, start:end] = value
        contents[slot] = contents[slot][:start] + bytes([value]) * (end - start)

    for number in range(1000):
        length = draw.randrange(1, 2 * PAGE)
        try:
            if contents and draw.random() < 0.5:
                parent = draw.choice(list(contents))
                at = draw.randrange(len(contents[parent]) + 1)
                child = pool.fork(parent, at)
                contents[child] = contents[parent][:at]
                pool.grow(child, at + length)
                write(child, at, at + length)
            else:
                slot = pool.open(length)
                contents[slot] = b""
                write(slot, 0, length)
        except (OutOfPagesError, InvalidArgumentError):
            for slot in draw.sample(list(contents), len(contents) // 2 + 1):
                assert bytes(pool.memory[1, slot, : len(contents[slot])].numpy()) == contents.pop(slot)
                pool.close(slot)
        if number % 100 == 0:
            pool.check()
    for slot in contents:
        pool.close(slot)
    pool.check()
    assert pool.num_shared_rows == 0
    assert pool.num_mappings == 2 * 6
    assert pool.touched_bytes <= 2 * 16 * PAGE
    assert "/memfd:kv" not in Path("/proc/self/maps").read_text()
    pool.unmap()


def test_a_fork_maps_the_whole_pages_and_copies_one() -> None:
    pool = VirtualPool(16, PAGE, 2, 2, 8 * PAGE)
    parent = pool.open(4 * PAGE)
    assert Path("/proc/self/maps").read_text().count("/memfd:kv") == 2
    pool.memory[:, parent, : 4 * PAGE] = 7
    child = pool.fork(parent, 2 * PAGE + 10)
    assert (pool.num_shared_rows, pool.touched_bytes) == (2, 2 * 5 * PAGE)
    pool.memory[:, parent, 2 * PAGE + 10 : 4 * PAGE] = 8
    assert pool.memory[1, child, : 2 * PAGE + 10].eq(7).all()
    assert pool.grow(child, 3 * PAGE) == 0
    assert pool.grow(child, 3 * PAGE + 1) == 2  # one ahead
    pool.unmap()


@pytest.mark.parametrize("shared", [0, 48])
def test_attention_over_every_layout_is_the_same(shared: int) -> None:
    work = Workload((6, 2, 64), "bfloat16", 3, 1, 80, shared)
    with layouts(work, (PAGE,), None) as calls:
        assert {"blocks", "arena", "virtual"} <= calls.keys()
        for one, other in pairwise([call() for call in calls.values()]):
            assert torch.allclose(one, other, rtol=0.0, atol=3e-2)


def test_what_the_system_or_the_pool_lacks_is_said_and_changes_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match=f"page_bytes is 1000; it must be a multiple of .* {PAGE}"):
        open_pages(1000, 10_000)
    with pytest.raises(InvalidArgumentError, match=r"page_bytes is 2097152; .*raise vm.nr_hugepages"):
        open_pages(HUGE_BYTES, 1 << 50)
    with pytest.raises(InvalidArgumentError, match="range_bytes is 1; it must be a multiple"):
        VirtualPool(1, PAGE, 1, 1, 1)
    pool = VirtualPool(8, PAGE, 2, 2, 4 * PAGE, most_mappings=6)
    first = pool.open(PAGE)
    with pytest.raises(InvalidArgumentError, match="num_bytes is 16385; it must be from 0 to 16384"):
        pool.grow(first, 4 * PAGE + 1)
    with pytest.raises(OutOfPagesError, match=r"8 mappings are needed and at most 6 allowed: raise vm.max_map_count"):
        pool.open(PAGE)
    pool.check()
    pool.close(first)
    pool.check()
    pool.unmap()
