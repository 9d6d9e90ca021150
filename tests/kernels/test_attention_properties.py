"""Attention on a CPU over drawn trees and shapes of layers: near the float64 reference, over the tree as branch by branch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import CPU_PATHS, Fork, PagedCase, Shape, make_forked_case, spec_of, take_cpu_path
from torch import Tensor

from radixkv.kernels import paged_attention, plan_attention
from radixkv.kernels.cpu import native_attention, torch_plan

RELATIVE_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.fixture(params=CPU_PATHS, autouse=True)
def cpu_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_cpu_path(request.param, monkeypatch)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    num_kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 16))
    head_dim = draw(st.sampled_from([64, 72, 80, 96, 128, 192, 256]))
    v_head_dim = draw(st.sampled_from([head_dim, head_dim, 64, 128]))
    return Shape(num_kv_heads * group, num_kv_heads, head_dim, v_head_dim, draw(st.sampled_from([8, 16, 32, 64, 128])))


@st.composite
def cases(draw: st.DrawFn) -> PagedCase:
    """Sequences that fork from one another, of no token to several blocks, with one new query or more."""
    shape = draw(shapes())
    size = shape.block_size
    forks = []
    for index in range(draw(st.integers(1, 7))):
        own = draw(st.sampled_from([0, 1, 3, size - 1, size, size + 1, 2 * size + 5]))
        forks.append(
            Fork(draw(st.integers(0, index)), draw(st.integers(0, 3)), own, draw(st.sampled_from([1, 1, 1, 4, 70])))
        )
    return make_forked_case(forks, shape, draw(st.sampled_from(list(RELATIVE_ERRORS))), seed=draw(st.integers(0, 99)))


def attend(case: PagedCase, window: int | None, *, shares: bool) -> Tensor:
    lens = case.query_lens, case.context_lens
    batch = plan_attention(*lens, case.block_tables, case.shape.block_size, "cpu", shares=shares)
    scale = case.shape.head_dim**-0.5
    return paged_attention(case.q, case.cache(), batch, scale=scale, sliding_window=window)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@settings(max_examples=40)
@given(cases(), st.sampled_from([None, None, 50]))
def test_any_tree_of_any_layer_agrees_with_the_reference_and_with_its_branches_alone(
    case: PagedCase, window: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_plan, "MIN_SAVED_BYTES", 1)
        limits = native_attention.NATIVE_LIMITS._replace(split_keys=64, min_saved_tokens=0.01)
        patch.setattr(native_attention, "NATIVE_LIMITS", limits)
        tree, alone = (attend(case, window, shares=shares) for shares in (True, False))
    assert tree.shape == (sum(case.query_lens), case.shape.num_heads, case.shape.v_head_dim)
    if not tree.numel():
        return
    bound = RELATIVE_ERRORS[case.q.dtype]
    assert relative_error(tree, case.expected(spec_of(case.shape, sliding_window=window))) < bound
    assert relative_error(tree, alone) < bound
