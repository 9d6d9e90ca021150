"""Attention over shared blocks on the CPU, each read once for all branches, against the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import CPU_PATHS, Fork, PagedCase, Shape, make_case, make_forked_case, spec_of, take_cpu_path

from radixkv.kernels import Scratch, paged_attention, plan_attention
from radixkv.kernels.cpu import native_attention, torch_plan
from radixkv.kernels.cpu.torch_plan import StepPlan, plan_step
from radixkv.kernels.work_list import WorkLimits

RELATIVE_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-13}
SMALL = Shape(num_heads=6, num_kv_heads=2, head_dim=32, v_head_dim=32, block_size=4)
SMALL_LATENTS = Shape(num_heads=6, num_kv_heads=1, head_dim=40, v_head_dim=32, block_size=4, is_latent=True)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"sliding_window": 9},
    {"sliding_window": 40},
    {"softcap": 1.5},
    {"sinks": torch.linspace(-2.0, 3.0, 6)},
    {"sliding_window": 30, "softcap": 3.0, "sinks": torch.linspace(3.0, -2.0, 6)},
]


@pytest.fixture(params=CPU_PATHS, autouse=True)
def cpu_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_cpu_path(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def any_run_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_plan, "MIN_SAVED_BYTES", 1)
    limits = native_attention.NATIVE_LIMITS._replace(min_saved_tokens=0.01)
    monkeypatch.setattr(native_attention, "NATIVE_LIMITS", limits)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Each query row and head within the relative error of `got`'s dtype; a NaN fails."""
    error = (got.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert bool((error < RELATIVE_ERRORS[got.dtype]).all()), error.max()


def plan_of(case: PagedCase) -> StepPlan:
    shape = case.shape
    token_bytes = shape.num_kv_heads * (shape.head_dim + shape.v_head_dim) * case.q.element_size()
    return plan_step(case.q, case.plan(), spec_of(shape), shape.num_heads // shape.num_kv_heads, token_bytes)


def num_gathered(plan: StepPlan) -> int:
    groups = [*plan.groups, *(plan.cascade.rest if plan.cascade else ())]
    runs = plan.cascade.runs if plan.cascade else []
    return sum(len(group.blocks.ids) for group in groups) + sum(len(blocks.ids) for *_, blocks in runs)


@st.composite
def forests(draw: st.DrawFn) -> list[Fork]:
    forks: list[Fork] = []
    for index in range(draw(st.integers(1, 9))):
        parent = draw(st.integers(0, index))
        own = draw(st.sampled_from([1, 3, 4, 5, 8, 9, 40, 300]))
        queries = draw(st.sampled_from([1, 1, 1, 2, 3, 7, 64, 70]))
        forks.append(Fork(parent, draw(st.sampled_from([0, 1, 2, 5, 20])), own, queries))
    return forks


@settings(max_examples=60)
@given(
    forests(),
    st.sampled_from([SMALL, SMALL, SMALL_LATENTS]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from(VARIANTS),
    st.sampled_from([1, 60, 500]),
    st.sampled_from([3, 70, 1024]),
)
def test_random_trees_agree_with_the_reference(
    forks: list[Fork], shape: Shape, dtype: torch.dtype, variant: dict[str, Any], min_saved: int, cut: int
) -> None:
    case = make_forked_case(forks, shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_plan, "MIN_SAVED_BYTES", 80 * min_saved)
        limits = WorkLimits(cut, cut, sharing_queries=64, min_saved_tokens=min_saved / 20)
        patch.setattr(native_attention, "NATIVE_LIMITS", limits)
        assert_close(case.on_cpu(**variant), case.expected(spec_of(shape, **variant)))


@pytest.mark.usefixtures("any_run_pays")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "+".join(v) or "plain")
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
def test_a_system_prompt_over_subtrees_agrees_with_the_reference(dtype: torch.dtype, variant: dict[str, Any]) -> None:
    subtrees = [Fork(0, 3, 1), Fork(0, 3, 31), Fork(0, 3, 24, 5), Fork(0, 2, 50)]
    branches = [Fork(parent, 8, own) for parent in range(4) for own in (1, 4, 6)]
    case = make_forked_case([*subtrees, *branches, Fork(16, 0, 90, 70), Fork(17, 2, 7)], SMALL, dtype)
    assert_close(case.on_cpu(**variant), case.expected(spec_of(SMALL, **variant)))


@pytest.mark.usefixtures("any_run_pays")
@pytest.mark.parametrize("shape", [Shape(), Shape(6, 2, 192, 128, 16), Shape(4, 4, 80, 80, 8)], ids=str)
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_contexts_around_the_end_of_what_is_shared_agree_with_the_reference(edge: int, shape: Shape) -> None:
    length = 4 * shape.block_size + edge
    case = make_case([(1, length), (1, length + 1), (2, length + 1), (1, length + 40)], shape, shared_blocks=4)
    assert_close(case.on_cpu(), case.expected(spec_of(shape)))


def test_a_long_shared_prompt_is_read_once_for_all_branches() -> None:
    shape = Shape()
    branches = [Fork(0, 64, 20 + index) for index in range(1, 32)]
    case = make_forked_case([Fork(0, 64, 20), *branches], shape, torch.bfloat16)
    plan = plan_of(case)
    assert plan.groups == []
    assert num_gathered(plan) <= 64 + 32 * 4
    assert_close(case.on_cpu(), case.expected(spec_of(shape)))


def test_what_branches_share_below_the_root_is_read_once_as_well() -> None:
    subtrees = [Fork(0, 64, 16 * 64 + 1) for _ in range(4)]
    branches = [Fork(parent, 128, 10) for parent in range(4) for _ in range(7)]
    case = make_forked_case([*subtrees, *branches], Shape(), torch.bfloat16)
    assert num_gathered(plan_of(case)) == 64 + 4 * 64 + 32


def test_a_short_shared_prefix_is_not_worth_a_pass_of_its_own() -> None:
    case = make_forked_case([Fork(0, 4, 20), Fork(0, 4, 20)], Shape(), torch.bfloat16)
    assert plan_of(case).cascade is None


@pytest.mark.usefixtures("any_run_pays")
def test_a_nan_in_a_shared_block_reaches_those_that_share_it_and_no_other() -> None:
    case = make_forked_case([Fork(0, 3, 5), Fork(0, 3, 9), Fork(2, 3, 5), Fork(0, 2, 6)], SMALL)
    case.v_cache[case.block_tables[0][2], 1] = torch.nan
    got = case.on_cpu().flatten(1)
    assert got.isnan().all(dim=1).tolist() == [True, True, False, False]
    assert got.isnan().any(dim=1).tolist() == [True, True, False, False]


@pytest.mark.usefixtures("any_run_pays")
def test_scratch_that_held_nan_does_not_leak_into_a_cascade() -> None:
    case = make_forked_case([Fork(0, 3, 5), Fork(0, 3, 9), Fork(0, 3, 2, 2)], SMALL)
    scratch = Scratch()
    for name in ("keys", "values", "merged", "lse"):
        scratch.take(name, (10_000,), case.q).fill_(torch.nan)
    batch = plan_attention(case.query_lens, case.context_lens, case.block_tables, 4, "cpu", scratch=scratch)
    assert scratch.take("merged", (1,), case.q).isnan().all()
    got = paged_attention(case.q, case.cache(), batch, scale=32**-0.5)
    assert_close(got, case.expected(spec_of(SMALL)))


@pytest.mark.usefixtures("any_run_pays")
def test_reading_shared_blocks_leaves_the_cache_as_it_was() -> None:
    case = make_case([(1, 60), (1, 70), (5, 65)], Shape(), shared_blocks=3, consecutive=True)
    cache = case.cache()
    before = [tensor.clone() for tensor in cache.tensors]
    paged_attention(case.q, cache, case.plan(), scale=0.125)
    torch.testing.assert_close(list(cache.tensors), before, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("window", [None, 20, 200])
def test_short_suffixes_of_different_lengths_agree_with_the_reference(window: int | None) -> None:
    lens = [(2, 50), (3, 50), (4, 61), (17, 40), (20, 20), (31, 90), (33, 300), (64, 64), (40, 100), (65, 130)]
    case = make_case(lens, SMALL)
    assert_close(case.on_cpu(sliding_window=window), case.expected(spec_of(SMALL, sliding_window=window)))
