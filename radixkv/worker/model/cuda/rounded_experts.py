"""Stacked experts whose weights have 8 or 4 bits: an order of the pairs, and two products, which a CUDA graph can capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from radixkv.kernels.gpu.expert_rows import order_by_expert
from radixkv.kernels.gpu.rounded_linear import linear_experts
from radixkv.worker.loading.packed_linear import EXPERT_STACKS, RoundedLinear

__all__ = ["has_rounded_experts", "use_rounded_experts"]

_NAME = "radixkv_rounded"


def has_rounded_experts(model: Any) -> bool:
    """Whether the model's stacked experts were rounded when it was loaded."""
    return any(isinstance(getattr(module, EXPERT_STACKS[0], None), RoundedLinear) for module in _experts(model))


def use_rounded_experts(model: Any) -> None:
    """Have the model's stacked experts, all of them rounded, run by `_run_experts`."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAME, _run_experts)
    model.set_experts_implementation(_NAME)


def _experts(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "is_transposed")]


def _run_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """[T, H] of hidden states [T, H], the experts [T, K] that each token chose, and their weights [T, K]."""
    up, down = (getattr(experts, name).quantised for name in EXPERT_STACKS)
    num_tokens, num_chosen = chosen.shape
    rows = order_by_expert(chosen, experts.num_experts, hidden.dtype)
    gated = experts._apply_gate(linear_experts(hidden, up, rows, num_chosen))
    found = linear_experts(gated, down, rows, 1).view(num_tokens, num_chosen, -1)
    return torch.bmm(weights[:, None].to(found.dtype), found)[:, 0]
