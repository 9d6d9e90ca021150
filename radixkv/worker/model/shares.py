"""Shares of a model's weights for ranks: transformers' plan for each architecture, completed, and the part that a rank has."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from radixkv.worker.errors import ModelError

__all__ = ["plan_shares", "share_of", "shares_asked"]


def share_of(tensor: Any) -> Tensor:
    """The part of a parameter that this rank has; the tensor itself where it is not shared out."""
    share: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return share


def shares_asked(num_ranks: int) -> dict[str, Any]:
    """Keywords of `from_pretrained` that share a model out; transformers has moved them."""
    from transformers.distributed.configuration_utils import DistributedConfig

    told: dict[str, Any] = {"tp_plan": "auto", "tp_size": num_ranks}
    try:
        return {"distributed_config": DistributedConfig(**told)}
    except TypeError:  # an earlier version
        return told


def plan_shares(config: Any, num_ranks: int) -> None:
    """Complete a configuration's plan of shares. KV heads that are fewer than the ranks are left whole.

    Raises:
        ModelError: the heads cannot be shared out evenly, or transformers has no plan for the architecture.
    """
    plan = config.base_model_tp_plan
    if not plan:
        raise ModelError(
            f"transformers has no plan that shares {config.model_type} out to ranks: leave --tensor-parallel out"
        )
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    if num_heads % num_ranks or max(num_kv_heads, num_ranks) % min(num_kv_heads, num_ranks):
        raise ModelError(
            f"{num_heads} heads and {num_kv_heads} KV heads cannot be shared out evenly to {num_ranks} ranks: take a "
            f"--tensor-parallel that divides both, or a multiple of {num_kv_heads} that divides {num_heads}"
        )
    if num_ranks > num_kv_heads:
        plan = {key: style for key, style in plan.items() if not key.endswith(("k_proj", "v_proj"))}
    if hasattr(config, "kv_lora_rank") and not any(
        "self_attn" in key for key in plan
    ):  # attention over latents, left whole
        made = {"q_proj": "colwise", "q_b_proj": "colwise", "kv_b_proj": "colwise", "o_proj": "rowwise"}
        plan = plan | {f"layers.*.self_attn.{name}": style for name, style in made.items()}
    config.base_model_tp_plan = plan
