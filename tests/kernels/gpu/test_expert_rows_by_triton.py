"""Pairs of tokens and experts are put in the experts' order, in blocks of one expert each, and multiplied by its weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.gpu.expert_rows import order_by_expert
from radixkv.kernels.gpu.grouped_weight import quantise_grouped, restore_grouped, stack_grouped
from radixkv.kernels.gpu.rounded_linear import linear_experts

pytestmark = needs_triton_device

INPUTS, OUTPUTS = 192, 70


def choose(num_tokens: int, num_chosen: int, num_experts: int) -> Tensor:
    """Experts of each token, of which some may be nobody's."""
    drawn = [torch.randperm(num_experts - 1)[:num_chosen] for _ in range(num_tokens)]
    return torch.stack(drawn) if drawn else torch.empty(0, num_chosen, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_tokens", "num_chosen", "num_experts"), [(1, 2, 3), (9, 4, 7), (150, 2, 4), (40, 1, 200)])
def test_blocks_hold_each_pair_once_by_its_expert(
    num_tokens: int, num_chosen: int, num_experts: int, dtype: torch.dtype
) -> None:
    chosen = choose(num_tokens, num_chosen, num_experts)
    rows = order_by_expert(chosen.to(DEVICE), num_experts, dtype)
    pairs = chosen.flatten()
    assert torch.equal(rows.order.cpu().long(), pairs.argsort(stable=True))
    held: list[int] = []
    for expert, first, end in rows.blocks.cpu().tolist():
        if expert >= 0:
            places = rows.order.cpu()[first : min(end, first + rows.tile.rows)].tolist()
            assert places
            assert {int(pairs[pair]) for pair in places} == {expert}
            held += places
    assert held == rows.order.cpu().tolist()


def test_a_step_s_shapes_depend_on_its_size_alone_so_that_a_graph_can_have_it() -> None:
    same = [torch.zeros(12, 2, dtype=torch.int64), torch.arange(24).view(12, 2), choose(12, 2, 24)]
    shapes = {tuple(order_by_expert(each.to(DEVICE), 24, torch.float32).blocks.shape) for each in same}
    assert len(shapes) == 1


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("num_tokens", "num_chosen", "num_experts"), [(0, 2, 3), (1, 2, 3), (9, 2, 5), (70, 1, 2)])
def test_each_pair_is_multiplied_by_its_expert_s_weight(
    num_tokens: int, num_chosen: int, num_experts: int, bits: int
) -> None:
    chosen = choose(num_tokens, num_chosen, num_experts)
    exact = torch.randn(num_experts, OUTPUTS, INPUTS)
    weights = [quantise_grouped(each.to(DEVICE), bits) for each in exact]
    stack = stack_grouped(iter(weights), num_experts)
    rows = order_by_expert(chosen.to(DEVICE), num_experts, torch.float32)
    x = torch.randn(num_tokens, INPUTS)
    found = linear_experts(x.to(DEVICE), stack, rows, num_chosen)
    assert found.shape == (num_tokens * num_chosen, OUTPUTS)
    for pair, expert in enumerate(chosen.flatten().tolist()):
        expected = restore_grouped(weights[expert]).cpu().double() @ x[pair // num_chosen].double()
        torch.testing.assert_close(found[pair].cpu().double(), expected, atol=1e-4, rtol=0)


def test_what_does_not_fit_is_refused_by_name() -> None:
    rows = order_by_expert(torch.zeros(2, 1, dtype=torch.int64, device=DEVICE), 2, torch.float32)
    single = quantise_grouped(torch.zeros(4, 64, device=DEVICE), 8)
    with pytest.raises(InvalidArgumentError, match="a stack"):
        linear_experts(torch.zeros(2, 64, device=DEVICE), single, rows, 1)
    with pytest.raises(InvalidArgumentError, match=r"x\.shape"):
        linear_experts(torch.zeros(3, 64, device=DEVICE), stack_grouped(iter([single] * 2), 2), rows, 1)
    with pytest.raises(InvalidArgumentError, match=r"chosen\.dtype"):
        order_by_expert(torch.zeros(2, 1, device=DEVICE), 2, torch.float32)
