"""The attention function that transformers' models call: K and V go through the slot mapping, queries through the
block table.

A model takes part by calling the registered function once per layer and forward pass; what the function does there
is up to the `AttentionSite` that the runner passes down as a keyword: the probe learns a model's shapes, the step
works on the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from radixkv.kernels import AttentionBatch, paged_attention, write_kv
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.errors import ModelError
from radixkv.worker.kv_pool import KVPool, LayerShape

__all__ = ["ATTENTION_NAME", "AttentionSite", "ShapeProbe", "StepAttention", "register_attention"]

ATTENTION_NAME = "radixkv"
"""No mask function is registered under this name, so models build no mask at all."""


class AttentionSite(Protocol):
    """Where the layers' calls arrive during one forward pass.

    `query` [T, Hq, D], `key` [T, Hkv, D], `value` [T, Hkv, Dv]; answers [T, Hq, Dv]. `sinks`: [Hq] or None.
    """

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor: ...


def register_attention() -> None:
    """Make the function known to transformers under `ATTENTION_NAME`. Doing it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attend)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    *,
    radixkv_site: AttentionSite | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, Hq, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] -> [1, T, Hq, Dv], as transformers lays them
    out.
    """
    if radixkv_site is None:
        raise ModelError("the model does not pass keywords down to its attention layers, so it cannot be served")
    if attention_mask is not None:
        raise ModelError("the model brings an attention mask of its own, which paged attention cannot honour")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise ModelError("the model has attention layers that are not causal, so it cannot be served")
    output = radixkv_site.attend(
        module.layer_idx,  # type: ignore[arg-type]  # an int on every attention layer; nn.Module cannot know
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return output[None], None


class ShapeProbe:
    """Notes what each layer would keep and compute, and which layers call at all; attends to nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerShape]] = []
        self.specs: dict[int, AttentionSpec] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, **terms: Any) -> Tensor:
        self.calls.append((layer, LayerShape(key.shape[1], key.shape[2], value.shape[2])))
        self.specs[layer] = AttentionSpec(**terms)
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])

    def layer_shapes(self, num_layers: int) -> Sequence[LayerShape]:
        """Shapes by layer index.

        Raises:
            ModelError: some layer did not call exactly once.
        """
        called = sorted(layer for layer, _ in self.calls)
        if called != list(range(num_layers)):
            raise ModelError(
                f"the model's {num_layers} layers made {len(called)} attention calls through transformers' attention "
                "interface, not one each: its architecture cannot be served, choose another model"
            )
        return [shape for _, shape in sorted(self.calls)]


class StepAttention:
    """One step's writes and reads on the pool. `slot_mapping` [T] int64 on the pool's device, -1 for what is stored
    already.
    """

    def __init__(self, pool: KVPool, batch: AttentionBatch, slot_mapping: Tensor) -> None:
        self._pool = pool
        self._batch = batch
        self._slot_mapping = slot_mapping

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        k_cache, v_cache = self._pool.k_caches[layer], self._pool.v_caches[layer]
        write_kv(key, value, k_cache, v_cache, self._slot_mapping)
        output: Tensor = paged_attention(
            query,
            k_cache,
            v_cache,
            self._batch,
            scale=scale,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=sinks,
        )
        return output
