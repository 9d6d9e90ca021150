"""Attention over work lists of trees, by the Triton kernels, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import Fork, Shape, make_case, make_forked_case, spec_of
from tree_cases import assert_near, expected_of, first_sequences, make_tree_list, start_run, steps
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.gpu import tree_attention
from radixkv.kernels.gpu.device_work import ALL_LAUNCHES, DeviceWork, WorkCapacity, advance
from radixkv.kernels.gpu.merge_parts import merge_parts, merge_parts_reference
from radixkv.kernels.gpu.tree_attention import attend_by_work

pytestmark = needs_triton_device

SMALL = Shape(num_heads=6, num_kv_heads=2, head_dim=32, v_head_dim=16, block_size=8)
LATENT = Shape(num_heads=5, num_kv_heads=1, head_dim=80, v_head_dim=64, block_size=8)
BUSHY = [Fork(0, 5, 9), Fork(0, 5, 3), Fork(0, 3, 17, num_queries=5), Fork(2, 4, 1), Fork(0, 5, 0), Fork(5, 2, 1)]
EDGES = (0, 1, SMALL.block_size - 1, SMALL.block_size, SMALL.block_size + 1, 3 * SMALL.block_size)


@st.composite
def forests(draw: st.DrawFn) -> list[Fork]:
    forks = []
    for index in range(draw(st.integers(1, 6))):
        parent = draw(st.integers(0, index))
        own_tokens = draw(st.sampled_from(EDGES)) + (parent == index)
        forks.append(Fork(parent, draw(st.integers(0, 5)), own_tokens, draw(st.sampled_from((1, 1, 1, 2, 11)))))
    return forks


@settings(max_examples=15)
@given(
    forks=forests(),
    split_keys=st.sampled_from((16, 64)),
    variant=st.sampled_from(
        ({}, {"sliding_window": 13}, {"softcap": 2.0, "sinks": torch.linspace(-1.0, 2.0, 6)}, {"sliding_window": 1})
    ),
    dtype=st.sampled_from((torch.float32, torch.float16)),
    cache_dtype=st.sampled_from((None, None, torch.int8, torch.float8_e4m3fn)),
    seed=st.integers(0, 1000),
)
def test_any_forest_agrees_with_the_reference(
    forks: list[Fork],
    split_keys: int,
    variant: dict[str, Any],
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None,
    seed: int,
) -> None:
    case = make_forked_case(forks, SMALL, dtype, seed=seed)
    run = start_run(case, spec_of(SMALL, **variant), cache_dtype=cache_dtype, split_keys=split_keys)
    assert_near(run.attend(), expected_of(run.case, run.spec))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(num_heads=6, num_kv_heads=2, head_dim=64, v_head_dim=64, block_size=16),
        Shape(num_heads=2, num_kv_heads=2, head_dim=128, v_head_dim=128, block_size=128),
        Shape(num_heads=40, num_kv_heads=1, head_dim=80, v_head_dim=80, block_size=32),
        Shape(num_heads=70, num_kv_heads=1, head_dim=20, v_head_dim=8, block_size=64),
        Shape(num_heads=4, num_kv_heads=4, head_dim=192, v_head_dim=128, block_size=16),
    ],
    ids=str,
)
def test_shapes_agree_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    forks = [Fork(0, 1, 5), Fork(0, 1, 0, num_queries=1), Fork(0, 1, 1), Fork(3, 0, 3, num_queries=3)]
    run = start_run(make_forked_case(forks, shape, dtype), spec_of(shape))
    assert_near(run.attend(), expected_of(run.case, run.spec))


@pytest.mark.parametrize("cache_dtype", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_latents_agree_with_the_reference(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    run = start_run(make_forked_case(BUSHY, LATENT, dtype), spec_of(LATENT), cache_dtype=cache_dtype, is_latent=True)
    assert_near(run.attend(), expected_of(run.case, run.spec))


def test_fp8_is_decoded_from_its_bits_for_a_chip_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "launch_target", lambda _: "sm_80")
    monkeypatch.setattr(tree_attention, "has_fp8", lambda _: False)
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL), cache_dtype=torch.float8_e4m3fn)
    assert_near(run.attend(), expected_of(run.case, run.spec))


def test_a_latent_of_576_columns_under_128_heads_agrees_with_the_reference() -> None:
    shape = Shape(num_heads=128, num_kv_heads=1, head_dim=576, v_head_dim=512, block_size=16)
    case = make_forked_case([Fork(0, 1, 3), Fork(0, 1, 1)], shape, torch.float16)
    run = start_run(case, spec_of(shape), is_latent=True)
    assert_near(run.attend(), expected_of(run.case, run.spec))


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("cache_dtype", [None, torch.int8], ids=str)
def test_a_list_serves_the_steps_after_it_once_its_positions_advance(
    window: int | None, cache_dtype: torch.dtype | None
) -> None:
    forks = [Fork(0, 4, 6), Fork(0, 4, 1), Fork(0, 2, 9), Fork(3, 0, 2)]
    num_steps = 7
    longest = make_forked_case([replace(fork, own_tokens=fork.own_tokens + num_steps - 1) for fork in forks], SMALL)
    case = replace(longest, context_lens=[context - num_steps + 1 for context in longest.context_lens])
    run = start_run(case, spec_of(SMALL, sliding_window=window), cache_dtype=cache_dtype)
    run.tables = longest.plan(DEVICE).block_tables
    for now, q in steps(run.case, num_steps, seed=1):
        assert_near(run.attend(q), expected_of(now, run.spec))
        advance(run.work, run.spec)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_replays_over_lists_that_are_loaded_later() -> None:
    large = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL), room=5)
    q = torch.zeros_like(large.case.q, device=DEVICE)
    large.attend(q)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend_by_work(
            q,
            large.k_cache,
            large.v_cache,
            large.tables,
            large.work,
            large.spec,
            large.out,
            launches=ALL_LAUNCHES,
        )
        advance(large.work, large.spec)
    for count in (len(BUSHY), 3):
        case = first_sequences(large.case, count)
        large.work.load(make_tree_list(case, large.spec, large.work.limits.wide_entries, 64))
        q.normal_()
        large.out.fill_(torch.nan)
        graph.replay()
        num_tokens = len(case.q)
        assert_near(large.out[:num_tokens].cpu(), expected_of(replace(case, q=q[:num_tokens].cpu()), large.spec))
        assert large.out[num_tokens:].isnan().all()


def test_buffers_with_room_take_one_list_after_another() -> None:
    large = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL), room=5)
    small = start_run(make_forked_case(BUSHY[:2], SMALL), spec_of(SMALL))
    for run in (large, small, large):
        large.work.load(make_tree_list(run.case, run.spec, large.work.limits.wide_entries, 64))
        assert_near(replace(run, work=large.work).attend(), expected_of(run.case, run.spec))


def test_before_a_list_is_loaded_nothing_is_written() -> None:
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL))
    empty = DeviceWork(run.work.capacity, run.work.limits, SMALL.num_heads, SMALL.v_head_dim, DEVICE)
    assert replace(run, work=empty).attend().isnan().all()


@pytest.mark.parametrize("name", ["entries", "items", "merge_parts", "part_rows"])
def test_a_list_that_does_not_fit_is_refused_and_the_loaded_one_stays(name: str) -> None:
    small = start_run(make_forked_case(BUSHY[:2], SMALL), spec_of(SMALL))
    large = make_tree_list(make_forked_case(BUSHY, SMALL), small.spec, small.work.limits.wide_entries, 64)
    room = WorkCapacity.of(large)
    work = DeviceWork(
        replace(room, **{name: getattr(room, name) - 1}), small.work.limits, SMALL.num_heads, SMALL.v_head_dim, DEVICE
    )
    work.load(make_tree_list(small.case, small.spec, small.work.limits.wide_entries, 64))
    with pytest.raises(InvalidArgumentError, match=rf"work_list.{name} is {getattr(room, name)}"):
        work.load(large)
    assert_near(replace(small, work=work).attend(), expected_of(small.case, small.spec))


def test_an_item_wider_than_the_wide_form_is_refused() -> None:
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL))
    wide = run.work.limits.wide_entries
    work_list = make_tree_list(make_case([(wide + 1, wide + 1)], SMALL), run.spec, wide + 1, 64)
    with pytest.raises(InvalidArgumentError, match=f"entries is {wide + 1}"):
        run.work.load(work_list)


def test_a_negative_capacity_is_refused() -> None:
    limits = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL)).work.limits
    with pytest.raises(InvalidArgumentError, match=r"capacity\.items is -1"):
        DeviceWork(WorkCapacity(1, -1, 0, 0), limits, 1, 16, DEVICE)


@pytest.mark.parametrize("sinks", [None, torch.linspace(-2.0, 3.0, 6)], ids=["plain", "sinks"])
def test_the_merge_agrees_with_its_reference(sinks: torch.Tensor | None) -> None:
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL), split_keys=16)
    work_list = make_tree_list(run.case, run.spec, run.work.limits.wide_entries, 16)
    run.work.narrow_parts.zero_()  # as if all were wide
    run.work.parts.normal_()
    run.work.lse.normal_(std=4.0)
    run.work.lse[work_list.merge_parts[1]] = -torch.inf
    out = torch.full_like(run.out, torch.nan)
    expected = torch.full(out.shape, torch.nan, dtype=torch.float64)
    merge_parts(run.work, sinks if sinks is None else sinks.to(DEVICE), out)
    merge_parts_reference(work_list, run.work.parts.cpu().double(), run.work.lse.cpu().double(), sinks, expected)
    merged = work_list.tokens[np.diff(work_list.part_starts) > 0]
    assert_near(out.cpu()[merged], expected[merged])


def test_caches_and_scales_must_fit_each_other() -> None:
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL), cache_dtype=torch.int8)
    with pytest.raises(InvalidArgumentError, match="scales"):
        replace(run, scales=None).attend()
    with pytest.raises(InvalidArgumentError, match=r"q\.dtype"):
        run.attend(run.case.q.double())


def test_a_list_for_another_layer_is_refused() -> None:
    run = start_run(make_forked_case(BUSHY, SMALL), spec_of(SMALL))
    limits = run.work.limits._replace(wide_entries=run.work.limits.wide_entries + 1)
    other = DeviceWork(run.work.capacity, limits, SMALL.num_heads, SMALL.v_head_dim, DEVICE)
    with pytest.raises(InvalidArgumentError, match=r"work\.limits"):
        replace(run, work=other).attend()
