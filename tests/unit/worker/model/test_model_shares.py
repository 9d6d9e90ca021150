"""What of a model each rank gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.errors import ModelError
from radixkv.worker.model.shares import plan_shares
from radixkv.worker.parallel.runner import _OwnHeads

PLAN = {
    f"layers.*.self_attn.{name}_proj": style for name, style in zip("qkvo", ["colwise"] * 3 + ["rowwise"], strict=True)
}
MLP = {"layers.*.mlp.up_proj": "colwise"}


def config(**facts: Any) -> Any:
    return SimpleNamespace(**{"model_type": "tiny", "base_model_tp_plan": PLAN | MLP} | facts)


@pytest.mark.parametrize("num_ranks", range(1, 13))
def test_heads_are_shared_out_where_each_rank_gets_as_many_and_kv_heads_are_not_parted(num_ranks: int) -> None:
    for num_heads in range(1, 13):
        for num_kv_heads in (None, *(number for number in range(1, num_heads + 1) if not num_heads % number)):
            told = config(num_attention_heads=num_heads, num_key_value_heads=num_kv_heads)
            kv = num_kv_heads or num_heads
            if num_heads % num_ranks == 0 and (kv % num_ranks == 0 or num_ranks % kv == 0):
                plan_shares(told, num_ranks)
                whole = {key for key in PLAN if key.endswith(("k_proj", "v_proj"))} if num_ranks > kv else set()
                assert told.base_model_tp_plan == {
                    key: style for key, style in (PLAN | MLP).items() if key not in whole
                }
            else:
                with pytest.raises(ModelError, match=f"{num_heads} heads and {kv} KV heads"):
                    plan_shares(told, num_ranks)
                assert told.base_model_tp_plan == PLAN | MLP


def test_attention_over_latents_is_shared_out_by_heads_where_there_is_no_plan_for_it() -> None:
    told = config(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=8, base_model_tp_plan=MLP)
    plan_shares(told, 2)
    made = {f"layers.*.self_attn.{name}_proj": "colwise" for name in ("q", "q_b", "kv_b")}
    assert told.base_model_tp_plan == MLP | made | {"layers.*.self_attn.o_proj": "rowwise"}
    for more in ({"kv_lora_rank": 8}, {}):
        told = config(num_attention_heads=4, num_key_value_heads=4, **more)
        plan_shares(told, 2)
        assert told.base_model_tp_plan == PLAN | MLP, "a plan that is there stays"


def test_without_a_plan_for_the_architecture_no_rank_is_started() -> None:
    for plan in ({}, None):
        with pytest.raises(ModelError, match="no plan that shares tiny"):
            plan_shares(config(num_attention_heads=4, base_model_tp_plan=plan), 2)


def test_a_rank_with_fewer_kv_heads_than_all_stores_the_ones_that_its_queries_read() -> None:
    seen: list[Any] = []
    site: Any = SimpleNamespace(
        attend=lambda *given: seen.append(given) or given[1],
        attend_latents=lambda *given: seen.append(given) or given[1],
    )
    query, key, value = torch.rand(3, 4, 8), torch.rand(3, 2, 8), torch.rand(3, 2, 8)
    spec = AttentionSpec(scale=1.0)
    assert _OwnHeads(site, slice(1, 2)).attend(5, query, key, value, spec) is query
    layer, _, own_key, own_value, told = seen.pop()
    assert (layer, told) == (5, spec)
    assert torch.equal(own_key, key[:, 1:])
    assert torch.equal(own_value, value[:, 1:])
    assert _OwnHeads(site, slice(1, 2)).attend_latents(6, query, key, 7, spec) is query
    assert seen == [(6, query, key, 7, spec)]
