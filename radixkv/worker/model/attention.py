"""The attention function that transformers' models call: K and V go through the slot mapping, queries through the block table.

A model calls the registered function once per layer and forward pass. The runner passes an `AttentionSite` down as a keyword,
which does the work: the probe learns a model's shapes, the step works on the pool. Latent attention with absorbed heads (see
`mla`) passes its rows as keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int32
from typing import Any, Protocol

import torch
from torch import Tensor

from radixkv.kernels import AttentionBatch, KVCache, paged_attention, write_kv, write_latents
from radixkv.kernels.gpu.glue import HeadEmbedding, embed_heads
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.errors import ModelError
from radixkv.worker.model.kv_pool import KVPool, LayerShape
from radixkv.worker.model.mla import latent_heads_of

__all__ = [
    "ATTENTION_NAME",
    "AttentionSite",
    "EmbeddingSite",
    "GivenUpError",
    "ShapeProbe",
    "StepAttention",
    "register_attention",
]

ATTENTION_NAME = "radixkv"
"""No mask function is registered under this name, so models build no mask."""


class AttentionSite(Protocol):
    """Receiver of the layers' calls during one forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """`query` [T, Hq, D], `key` [T, Hkv, D], `value` [T, Hkv, Dv]; returns [T, Hq, Dv]."""

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        """`query` [T, Hq, D], `latents` [T, D], whose first `value_dim` columns are the values; returns [T, Hq, value_dim]."""


class EmbeddingSite(AttentionSite, Protocol):
    """A receiver that also norms queries and keys and turns them by their positions."""

    def attend_unembedded(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: HeadEmbedding, spec: AttentionSpec
    ) -> Tensor:
        """As `attend`, of queries and keys that are not normed and turned by their positions yet."""


def register_attention() -> None:
    """Register the function with transformers under `ATTENTION_NAME`. Idempotent."""
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
    """query [1, Hq, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] -> [1, T, Hq, Dv], transformers' layout."""
    if radixkv_site is None:
        raise ModelError("the model does not pass keywords down to its attention layers, so it cannot be served")
    if attention_mask is not None:
        raise ModelError("the model brings an attention mask of its own, which paged attention cannot honour")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise ModelError("the model has attention layers that are not causal, so it cannot be served")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    spec = AttentionSpec(scale, sliding_window, softcap, s_aux)
    layer: int = module.layer_idx  # type: ignore[assignment]  # on every attention layer; nn.Module cannot know
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    heads = latent_heads_of(module)
    if heads is None:
        return radixkv_site.attend(layer, queries, keys, values, spec)[None], None
    attended = radixkv_site.attend_latents(layer, heads.absorb(queries), keys[:, 0], heads.rank, spec)
    return heads.expand(attended)[None], None


class ShapeProbe:
    """Records the shapes that each layer stores and computes; attends to nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerShape]] = []
        self.specs: dict[int, AttentionSpec] = {}
        self.widest_query = 0
        """Elements of one position's queries, at most."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        return self._note(layer, LayerShape(key.shape[1], key.shape[2], value.shape[2]), query, spec)

    def attend_unembedded(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: HeadEmbedding,  # noqa: ARG002  # of a model that another runner has fused
        spec: AttentionSpec,
    ) -> Tensor:
        return self.attend(layer, query, key, value, spec)

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        return self._note(layer, LayerShape(1, latents.shape[1], value_dim, is_latent=True), query, spec)

    def _note(self, layer: int, shape: LayerShape, query: Tensor, spec: AttentionSpec) -> Tensor:
        self.calls.append((layer, shape._replace(window=spec.sliding_window)))
        self.specs[layer] = spec
        self.widest_query = max(self.widest_query, query.shape[1] * query.shape[2])
        return query.new_zeros(query.shape[0], query.shape[1], shape.value_dim)

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


class GivenUpError(Exception):
    """The step became unwanted, and was given up between two layers."""


class StepAttention:
    """One step's writes and reads on the pool. `slot_mapping` [T] int64 on the pool's device, -1 for tokens already stored.

    `windowed`: batch and slots of the layers whose caches have rows of their own, if the pool has such. `is_unwanted`: another
    thread may set it to 1; the next layer then raises `GivenUpError`.
    """

    def __init__(
        self,
        pool: KVPool,
        batch: AttentionBatch,
        slot_mapping: Tensor,
        is_unwanted: c_int32 | None = None,
        windowed: tuple[AttentionBatch, Tensor] | None = None,
    ) -> None:
        self._pool = pool
        self._whole = batch, slot_mapping
        self._windowed = windowed or self._whole
        self._is_unwanted = is_unwanted

    def _at(self, layer: int) -> tuple[KVCache, AttentionBatch, Tensor]:
        batch, slots = self._whole if self._pool.layers[layer].window is None else self._windowed
        return self._pool.caches[layer], batch, slots

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        cache, batch, slots = self._at(layer)
        write_kv(key, value, cache, slots)
        return self._attend(query, cache, batch, spec)

    def attend_unembedded(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: HeadEmbedding, spec: AttentionSpec
    ) -> Tensor:
        cache, batch, slots = self._at(layer)
        return self._attend(embed_heads(query, key, value, how, cache, slots), cache, batch, spec)

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        cache, batch, slots = self._at(layer)
        assert cache.v_head_dim == value_dim
        write_latents(latents, cache, slots)
        return self._attend(query, cache, batch, spec)

    def _attend(self, query: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
        if self._is_unwanted is not None and self._is_unwanted.value:
            raise GivenUpError
        return paged_attention(
            query,
            cache,
            batch,
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            softcap=spec.softcap,
            sinks=spec.sinks,
        )
