"""Blocks that are swapped out come back as they were, wherever they are put."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton_device import DEVICE

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import KVFormat, allocate_kv
from radixkv.kernels.kv import host_blocks
from radixkv.worker.errors import ModelError
from radixkv.worker.model.kv_pool import KVPool, LayerShape

NUM_BLOCKS, NUM_SLOTS, BLOCK_SIZE = 6, 5, 4
LAYERS = (LayerShape(2, 3, 5), LayerShape(1, 8, 8), LayerShape(1, 9, 7, is_latent=True))

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def random_pool(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, num_host_blocks: int = NUM_SLOTS) -> KVPool:
    pool = KVPool(LAYERS, NUM_BLOCKS, BLOCK_SIZE, dtype, torch.device(device), num_host_blocks)
    torch.manual_seed(0)
    for tensor in tensors_of(pool):
        tensor.copy_(torch.randn(tensor.shape))
    return pool


def tensors_of(pool: KVPool) -> list[torch.Tensor]:
    return [tensor for cache in pool.caches for tensor in cache.tensors]


def content(pool: KVPool) -> list[torch.Tensor]:
    """Every cache's blocks, on the CPU."""
    return [tensor.cpu().clone() for tensor in tensors_of(pool)]


def poison(pool: KVPool) -> None:
    for tensor in tensors_of(pool):
        tensor.fill_(float("nan"))


def assert_holds(pool: KVPool, before: list[torch.Tensor], origins: dict[int, int]) -> None:
    """Block `b` of every cache is what block `origins[b]` was; every other block is still poisoned."""
    for cache, old in zip(content(pool), before, strict=True):
        for block in range(NUM_BLOCKS):
            if block in origins:
                assert torch.equal(cache[block], old[origins[block]])
            else:
                assert cache[block].isnan().all()


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saved_blocks_come_back_into_other_blocks_in_any_order(device: str, dtype: torch.dtype) -> None:
    pool = random_pool(device, dtype)
    before = content(pool)
    pool.save([5, 0, 3], [1, 4, 2])
    poison(pool)
    pool.load([2, 1, 4], [0, 1, 5])
    assert_holds(pool, before, {0: 3, 1: 5, 5: 0})


@given(st.permutations(range(NUM_BLOCKS)), st.permutations(range(NUM_SLOTS)), st.integers(0, NUM_SLOTS), st.randoms())
def test_any_part_of_any_table_survives_any_slots(blocks: list[int], slots: list[int], count: int, random) -> None:  # type: ignore[no-untyped-def]
    pool = random_pool()
    before = content(pool)
    pool.save(blocks[:count], slots[:count])
    poison(pool)
    goals = random.sample(range(NUM_BLOCKS), count)
    back = random.sample(range(count), count)
    pool.load([slots[i] for i in back], goals)
    assert_holds(pool, before, {goal: blocks[i] for goal, i in zip(goals, back, strict=True)})


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_more_blocks_than_are_moved_at_once_all_arrive(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "_STAGING_BYTES", 1)  # one block at a time
    pool = random_pool(device)
    before = content(pool)
    pool.save([4, 3, 2, 1, 0], [0, 1, 2, 4, 3])
    poison(pool)
    pool.load([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert_holds(pool, before, {0: 4, 1: 3, 2: 2, 3: 0, 4: 1})


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_what_is_queued_happens_in_order(device: str) -> None:
    pool = random_pool(device)
    before = content(pool)
    pool.save([0], [0])
    poison(pool)
    pool.load([0], [1])
    pool.save([1], [3])
    pool.load([3], [2])
    assert_holds(pool, before, {1: 0, 2: 0})


def test_one_slot_fills_many_blocks_and_one_block_many_slots() -> None:
    pool = random_pool()
    before = content(pool)
    pool.save([2, 2, 1], [0, 3, 1])
    poison(pool)
    pool.load([0, 3, 3], [5, 4, 0])
    assert_holds(pool, before, {5: 2, 4: 2, 0: 2})


@pytest.mark.parametrize(
    ("block_ids", "slots", "argument"),
    [
        ([0, NUM_BLOCKS], [0, 1], "block_ids"),
        ([0, -1], [0, 1], "block_ids"),
        ([0, 1], [0, NUM_SLOTS], "slots"),
        ([0, 1], [-1, 0], "slots"),
        ([0, 1], [0], "slots"),
        ([0], [0, 1], "slots"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name_and_nothing_moves(
    block_ids: list[int], slots: list[int], argument: str
) -> None:
    pool = random_pool()
    pool.save(range(NUM_SLOTS), range(NUM_SLOTS))
    before = content(pool)
    poison(pool)
    with pytest.raises(InvalidArgumentError, match=argument):
        pool.save(block_ids, slots)
    with pytest.raises(InvalidArgumentError, match=argument):
        pool.load(slots, block_ids)
    assert_holds(pool, before, {})
    pool.load(range(NUM_SLOTS), range(NUM_SLOTS))
    assert_holds(pool, before, {i: i for i in range(NUM_SLOTS)})


def test_a_destination_that_comes_twice_is_refused() -> None:
    pool = random_pool()
    with pytest.raises(InvalidArgumentError, match="slots"):
        pool.save([0, 1], [2, 2])
    with pytest.raises(InvalidArgumentError, match="block_ids"):
        pool.load([0, 1], [2, 2])


def test_a_pool_without_swap_space_refuses_to_save_and_takes_no_memory() -> None:
    pool = random_pool(num_host_blocks=0)
    assert pool.num_host_blocks == 0
    pool.save([], [])
    with pytest.raises(InvalidArgumentError, match="slots"):
        pool.save([0], [0])


@pytest.mark.parametrize(("num_host_blocks", "error"), [(-1, InvalidArgumentError), (2**42, ModelError)])
def test_swap_space_that_cannot_be_had_is_refused(num_host_blocks: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"num_host_blocks|host memory .* MB"):
        random_pool(num_host_blocks=num_host_blocks)


@pytest.mark.parametrize("kv_format", [None, KVFormat.INT8, KVFormat.FP8])
@pytest.mark.parametrize("block_size", [4, 3])  # of whole words, and of bytes
def test_triton_moves_whole_blocks_of_all_layers_in_one_launch(block_size: int, kv_format: KVFormat | None) -> None:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device, and TRITON_INTERPRET is not 1")
    caches = [
        allocate_kv(NUM_BLOCKS, block_size, heads, 16, torch.bfloat16, DEVICE, v_head_dim=8, format=kv_format)
        for heads in (1, 3)
    ]
    tensors = [tensor.view(NUM_BLOCKS, -1).view(torch.uint8) for cache in caches for tensor in cache.tensors]
    for tensor in tensors:
        tensor.random_(0, 256)
    before = [tensor.clone() for tensor in tensors]
    mover = host_blocks._Mover(tensors)
    rows = torch.empty(3, sum(tensor.shape[1] for tensor in tensors), dtype=torch.uint8, device=DEVICE)
    ids = torch.tensor([5, 0, 3], device=DEVICE)
    mover.move(ids, rows, to_rows=True)
    assert torch.equal(rows, torch.cat([tensor[ids] for tensor in before], dim=1))
    mover.move(torch.tensor([1, 2, 4], device=DEVICE), rows, to_rows=False)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[[1, 2, 4]], old[[5, 0, 3]])
        assert torch.equal(tensor[[0, 3, 5]], old[[0, 3, 5]])


@pytest.mark.gpu
def test_swap_space_of_a_cuda_pool_is_pinned_exactly_as_large_as_asked_and_given_back() -> None:
    for _ in range(3):  # memory still registered could not be registered again
        pool = random_pool("cuda")
        assert pool._host._rows.is_pinned()
        del pool
