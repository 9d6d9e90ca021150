"""Stacked experts of small steps by batched products, on GPUs where torch's grouped product reads group sizes on the host.

That wait cannot be captured into a CUDA graph. A batched product gathers each row's experts: up to as many as a layer has, it
reads each of the layer's weights once at most. Larger steps take the grouped product, and run without a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["reads_group_sizes", "use_capturable_experts"]

_NAME = "radixkv_capturable"
_GROUPED_MAJORS = (9, 10)
"""Compute capabilities with a grouped product of bfloat16 on the device."""


def reads_group_sizes(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped product waits for the device there."""
    if device.type != "cuda":
        return False
    return dtype != torch.bfloat16 or torch.cuda.get_device_capability(device)[0] not in _GROUPED_MAJORS


def use_capturable_experts(model: Any) -> None:
    """Have stacked experts that transformers can run in several ways run by `_run_experts`."""
    if not any(hasattr(module, "is_transposed") for module in model.modules()):
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAME, _run_experts)
    model.set_experts_implementation(_NAME)


def _run_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """[T, H] of hidden states [T, H], the experts [T, K] that each token chose, and their weights [T, K]."""
    from transformers.integrations import moe

    is_small = chosen.numel() <= experts.num_experts
    run = moe.batched_mm_experts_forward if is_small else moe.grouped_mm_experts_forward
    result: Tensor = run(experts, hidden, chosen, weights)
    return result
