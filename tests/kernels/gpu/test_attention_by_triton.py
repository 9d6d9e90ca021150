"""Paged attention by the Triton kernels against the float64 reference, over pools that hold NaN everywhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from paged_cases import Shape, assert_agrees, make_case, spec_of
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, paged_attention, plan_attention, write_kv
from radixkv.kernels.gpu import device_work, launch
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat

pytestmark = needs_triton_device

SMALL = Shape(num_heads=2, num_kv_heads=1)
VARIANTS: list[dict[str, Any]] = [
    {"sliding_window": 70},
    {"sliding_window": 11, "softcap": 3.0},
    {"sinks": torch.tensor([-1.0, 2.0])},
]


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several splits and several merge steps within the short contexts that the interpreter can afford."""
    monkeypatch.setattr(device_work, "SPLIT_KEYS", 64)
    monkeypatch.setattr(device_work, "LEAST_SPLITS", (64, 64))
    monkeypatch.setattr(device_work, "MOST_SPLIT", 64)
    monkeypatch.setattr(device_work, "UNITS_PER_PROCESSOR", (100, 100))
    monkeypatch.setattr(launch, "_MOST_MERGED", 2)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(), torch.float16),
        (Shape(num_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, block_size=32), torch.float32),
        (Shape(num_heads=2, num_kv_heads=2, head_dim=80, v_head_dim=80, block_size=8), torch.bfloat16),
        (Shape(num_heads=5, num_kv_heads=1, head_dim=256, v_head_dim=256, block_size=64), torch.float16),
        (Shape(num_heads=3, num_kv_heads=1, head_dim=192, v_head_dim=128, block_size=128), torch.float32),
    ],
    ids=str,
)
def test_mixed_lengths_agree_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    size = min(shape.block_size, 32)
    lens = [(1, 1), (1, size - 1), (0, 9), (1, size), (size + 9, size + 9), (1, size + 1), (3, 2 * size)]
    case = make_case(lens, shape, dtype)
    spec = spec_of(shape)
    assert_agrees(case.by_triton(spec, DEVICE), case.expected(spec))


@pytest.mark.parametrize("variant", VARIANTS, ids="+".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_variants_over_several_splits_agree_with_the_reference(dtype: torch.dtype, variant: dict[str, Any]) -> None:
    case = make_case([(1, 64), (1, 65), (1, 195), (34, 150)], SMALL, dtype)
    spec = spec_of(SMALL, **variant)
    assert_agrees(case.by_triton(spec, DEVICE), case.expected(spec))


def test_branches_that_share_blocks_agree_with_the_reference() -> None:
    case = make_case([(1, 64), (1, 65), (1, 90), (5, 70)], SMALL, shared_blocks=4)
    assert_agrees(case.by_triton(spec_of(SMALL), DEVICE), case.expected(spec_of(SMALL)))


@pytest.mark.parametrize("window", [None, 20])
def test_a_decode_row_is_the_same_to_the_bit_in_any_batch(window: int | None) -> None:
    batch = make_case([(1, 150), (1, 70), (1, 10), (4, 90)], SMALL)
    spec = spec_of(SMALL, sliding_window=window)
    together = batch.by_triton(spec, DEVICE, shares=False)
    for row in range(3):
        alone = replace(
            batch,
            q=batch.q[row : row + 1],
            query_lens=[1],
            context_lens=batch.context_lens[row : row + 1],
            block_tables=batch.block_tables[row : row + 1],
        )
        assert torch.equal(alone.by_triton(spec, DEVICE, shares=False)[0], together[row])


@pytest.mark.parametrize("cut", [3, 33])
def test_a_prompt_in_chunks_gives_the_rows_of_the_whole_prompt(cut: int) -> None:
    whole = make_case([(70, 70)], SMALL)
    first = replace(whole, q=whole.q[:cut], query_lens=[cut], context_lens=[cut])
    second = replace(whole, q=whole.q[cut:], query_lens=[70 - cut])
    spec = spec_of(SMALL)
    parts = torch.cat([chunk.by_triton(spec, DEVICE, shares=False) for chunk in (first, second)])
    assert torch.equal(parts, whole.by_triton(spec, DEVICE, shares=False))


def test_a_tree_that_grows_is_planned_once_and_each_step_agrees_with_the_reference() -> None:
    """Over the end of a split, where it is planned anew."""
    whole = make_case([(1, 70), (1, 69), (1, 75)], SMALL, shared_blocks=3)
    spec = spec_of(SMALL)
    cache = whole.cache(DEVICE, Layout.HEAD_MAJOR)
    before, made = None, []
    for step in range(10):
        lens = [length - 9 + step for length in whole.context_lens]
        case = replace(whole, context_lens=lens)
        batch = plan_attention([1, 1, 1], lens, case.block_tables, SMALL.block_size, DEVICE, before=before)
        found = paged_attention(case.q.to(DEVICE), cache, batch, scale=spec.scale)
        assert_agrees(found.cpu(), case.expected(spec))
        (planned,) = batch.plans.values()
        made.append(id(planned.work_list))
        before = batch
    assert made[0] == made[2]
    assert 1 < len(set(made)) < 6


@pytest.mark.parametrize("kv_format", [KVFormat.FP8, KVFormat.INT8])
def test_quantised_caches_are_written_and_read_as_on_a_cpu(kv_format: KVFormat) -> None:
    case = make_case([(1, 64), (1, 35), (5, 70)], SMALL, torch.float16, shared_blocks=1)
    new = [cache.nan_to_num().flatten(0, 1) for cache in (case.k_cache, case.v_cache)]
    found = []
    for device, layout in ((DEVICE, Layout.HEAD_MAJOR), ("cpu", Layout.TOKEN_MAJOR)):
        cache = allocate_kv(len(case.k_cache), 16, 1, 64, torch.float16, device, format=kv_format, layout=layout)
        write_kv(*(rows.to(device) for rows in new), cache, torch.arange(len(new[0]), device=device))
        found.append(paged_attention(case.q.to(device), cache, case.plan(device), scale=0.125).cpu())
    assert (found[0] - found[1]).norm() <= 2e-3 * found[1].norm()


def test_latents_agree_with_the_reference() -> None:
    shape = Shape(num_heads=16, num_kv_heads=1, head_dim=144, v_head_dim=128, is_latent=True)
    case = make_case([(1, 64), (1, 65), (1, 90), (5, 70)], shape, shared_blocks=4)
    assert_agrees(case.by_triton(spec_of(shape), DEVICE), case.expected(spec_of(shape)))


def test_a_head_that_is_too_wide_is_refused() -> None:
    shape = Shape(num_heads=1, num_kv_heads=1, head_dim=launch.MAX_HEAD_DIM + 1, v_head_dim=16)
    with pytest.raises(InvalidArgumentError, match="head_dim is 257"):
        make_case([(1, 1)], shape).by_triton(spec_of(shape), DEVICE)
