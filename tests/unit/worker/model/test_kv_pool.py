"""Block ops have the result of being carried out one after the other, whatever runs they are split into."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import write_kv, write_latents
from radixkv.kernels.kv.block_copy import conflict_free_batches
from radixkv.worker.errors import ModelError
from radixkv.worker.model.kv_pool import KVPool, LayerShape
from radixkv.worker.model.rows import ForwardRow

NUM_BLOCKS = 5
BLOCK_SIZE = 4
LAYERS = (LayerShape(2, 3, 3), LayerShape(2, 6, 4), LayerShape(1, 8, 8), LayerShape(1, 6, 4, is_latent=True))

copies = st.lists(
    st.builds(
        Copy,
        src=st.integers(0, NUM_BLOCKS - 1),
        dst=st.integers(0, NUM_BLOCKS - 1),
        num_tokens=st.integers(0, BLOCK_SIZE),
    ),
    max_size=12,
)


def filled_pool(num_host_blocks: int = 0) -> KVPool:
    """Every slot of every cache holds its own number."""
    pool = KVPool(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float32, torch.device("cpu"), num_host_blocks)
    slots = torch.arange(NUM_BLOCKS * BLOCK_SIZE)
    for layer, cache in zip(LAYERS, pool.caches, strict=True):
        numbers = slots.float()[:, None, None]
        keys = numbers.expand(-1, layer.num_kv_heads, layer.key_dim).contiguous()
        if layer.is_latent:
            write_latents(keys[:, 0], cache, slots)
            continue
        values = 100 + numbers.expand(-1, layer.num_kv_heads, layer.value_dim)
        write_kv(keys, values.contiguous(), cache, slots)
    return pool


@given(copies)
def test_ops_copy_what_they_would_one_after_the_other(ops: list[Copy]) -> None:
    slots = list(range(NUM_BLOCKS * BLOCK_SIZE))
    for src, dst, num_tokens in ops:
        for offset in range(num_tokens):
            slots[dst * BLOCK_SIZE + offset] = slots[src * BLOCK_SIZE + offset]
    pool = filled_pool()
    pool.carry_out(ops)
    expected = torch.tensor(slots).float().view(NUM_BLOCKS, BLOCK_SIZE, 1, 1)
    for cache in pool.caches:
        for first, rows in zip((0, 100), cache.token_major(), strict=False):  # of latents one
            assert torch.equal(rows, first + expected.expand_as(rows))


@given(copies, st.integers(1, NUM_BLOCKS - 1), st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=4))
def test_rows_of_windows_hold_what_their_blocks_would(ops: list[Copy], num_rows: int, written: list[int]) -> None:
    layers = (LayerShape(1, 2, 2, window=5), LayerShape(1, 2, 2), LayerShape(2, 3, 3, window=3))
    sizes = (NUM_BLOCKS, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    pool = KVPool(layers, *sizes, num_window_blocks=num_rows)
    windows = pool.windows
    assert windows is not None
    assert windows.window == 5
    assert [cache.num_blocks for cache in pool.caches] == [num_rows + 1, NUM_BLOCKS, num_rows + 1]
    for block in written:  # slot by slot its own number
        row = ForwardRow([0] * BLOCK_SIZE, 0, array("i", [block]), 0, 0)
        windows.take([row])
        slots = torch.from_numpy(windows.slots([row]))
        windows.written([row])
        for layer, cache in ((layers[0], pool.caches[0]), (layers[2], pool.caches[2])):
            numbers = torch.arange(BLOCK_SIZE).float()[:, None, None] + block * BLOCK_SIZE
            write_kv(*[numbers.expand(-1, layer.num_kv_heads, layer.key_dim).contiguous()] * 2, cache, slots)
    pool.carry_out(ops)
    held = list(range(NUM_BLOCKS * BLOCK_SIZE))
    for src, dst, num_tokens in ops:
        for offset in range(num_tokens):
            held[dst * BLOCK_SIZE + offset] = held[src * BLOCK_SIZE + offset]
    for block in range(NUM_BLOCKS):
        num_there = max(at for at in range(BLOCK_SIZE + 1) if windows.has_window(array("i", [block]), at))
        row = windows.tables(np.array([block]))[0]
        expected = held[block * BLOCK_SIZE : block * BLOCK_SIZE + num_there]
        for cache in (pool.caches[0], pool.caches[2]):
            for tensor in cache.token_major():
                assert tensor[row, :num_there, 0, 0].tolist() == expected


def test_a_pool_with_fewer_windows_has_no_host_memory() -> None:
    layers = (LayerShape(1, 2, 2, window=5), LayerShape(1, 2, 2))
    sizes = (NUM_BLOCKS, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    with pytest.raises(InvalidArgumentError, match="num_host_blocks is 2; it must be 0"):
        KVPool(layers, *sizes, 2, num_window_blocks=3)
    pool = KVPool(layers, *sizes, num_window_blocks=3)
    pool.shrink_host(0)
    assert pool.num_host_blocks == 0
    assert KVPool(layers, *sizes, 2, num_window_blocks=NUM_BLOCKS).windows is None
    assert KVPool(layers[1:], *sizes, 2, num_window_blocks=3).windows is None, "no layer has a window"


@given(copies)
def test_a_run_writes_no_block_twice_and_reads_none_that_it_writes(ops: list[Copy]) -> None:
    runs = list(conflict_free_batches(ops))
    assert [op for run in runs for op in run] == [op for op in ops if op.num_tokens and op.src != op.dst]
    for run in runs:
        written = [op.dst for op in run]
        assert len(set(written)) == len(written)
        assert not set(written) & {op.src for op in run}


def test_copies_from_one_block_to_many_stay_one_run() -> None:
    ops = [Copy(0, dst, 3) for dst in (1, 2, 3, 4)]
    assert list(conflict_free_batches(ops)) == [ops]


@pytest.mark.parametrize("bad", [Copy(0, NUM_BLOCKS, 1), Copy(-1, 0, 1), Copy(0, 1, BLOCK_SIZE + 1), Copy(0, 1, -1)])
def test_an_op_out_of_bounds_is_refused_and_nothing_is_copied(bad: Copy) -> None:
    pool = filled_pool()
    before = [cache.k.clone() for cache in pool.caches]
    with pytest.raises(InvalidArgumentError):
        pool.carry_out([Copy(0, 1, 2), bad])
    assert all(torch.equal(cache.k, kept) for cache, kept in zip(pool.caches, before, strict=True))


def test_a_pool_made_in_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        pool = KVPool(LAYERS, NUM_BLOCKS, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    keys = pool.caches[0].k
    keys[0] = 1.0
    pool.carry_out([Copy(0, 1, BLOCK_SIZE)])
    assert torch.equal(keys[1], keys[0])


def test_the_pool_tells_its_size() -> None:
    pool = filled_pool()
    assert pool.token_bytes == 4 * (2 * (3 + 3) + 2 * (6 + 4) + (8 + 8) + 6)
    assert pool.token_bytes * NUM_BLOCKS * BLOCK_SIZE == pool.size_bytes


def test_a_pool_larger_than_memory_says_how_much_it_needs() -> None:
    with pytest.raises(ModelError, match=r"needs [\d,]+ MB"):
        KVPool(LAYERS, 2**40, BLOCK_SIZE, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("argument", ["num_blocks", "block_size"])
def test_a_pool_has_at_least_one_slot(argument: str) -> None:
    sizes = {"num_blocks": 1, "block_size": 1, argument: 0}
    with pytest.raises(InvalidArgumentError, match=argument):
        KVPool(LAYERS, dtype=torch.float32, device=torch.device("cpu"), **sizes)
