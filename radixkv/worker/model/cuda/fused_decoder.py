"""A model of the Llama family on a GPU: its own matrices, and one kernel for each thing between them.

    per layer    add_norm . q k v . embed_heads . attention . o . add_norm . gate up . gate . down

9 launches with matrices joined, 12 without, and one or two more for prompts and trees; the model's own code makes 43. Known
model classes are taken. Before use, a short prompt is run both ways; any model that does not fit runs its own code.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from radixkv.kernels import plan_attention
from radixkv.kernels.gpu.glue import HeadEmbedding, add_norm, gate
from radixkv.kernels.gpu.grouped_weight import concatenate_grouped
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.loading.packed_linear import RoundedLinear
from radixkv.worker.model.attention import AttentionSite, EmbeddingSite, StepAttention
from radixkv.worker.model.kv_pool import KVPool, LayerShape

__all__ = ["fuse_decoder"]

_LOG = logging.getLogger(__name__)

_FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_ACTIVATIONS = ("silu", "swish")
_NUM_COMPARED = 8
_BLOCK_SIZE = 16
"""Of most pools, for which the kernels are then compiled."""

_MOST_APART = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Of the logits' norm: rounded to bfloat16 between matrices, one model's logits for 30 layers are 0.04 to 0.08 off."""


class _Joined:
    """Linear layers of the same inputs: one product for successive plain or rounded ones of one kind. The modules then keep
    views of the joined weights.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._products: list[tuple[Callable[[Tensor], Tensor], list[int]]] = [(module, []) for module in modules]

    def join(self) -> None:
        """Join the weights, as far as possible. Takes a layer's memory twice meanwhile."""
        with torch.inference_mode(False):
            kinds = groupby(self._modules, _kind_of)
            self._products = [each for kind, modules in kinds for each in _joined(kind, list(modules))]

    def __call__(self, rows: Tensor) -> Sequence[Tensor]:
        results: list[Tensor] = []
        for product, widths in self._products:
            found = product(rows)
            results += torch.split(found, widths, dim=1) if widths else [found]
        return results


def _kind_of(module: nn.Module) -> tuple[object, ...] | None:
    """Modules of one kind can be joined; None: it cannot."""
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) is nn.Linear:
        return "plain", module.bias is not None
    if isinstance(module, RoundedLinear):
        return *module.quantised.kind, module.float_bias is not None
    return None


def _joined(
    kind: tuple[object, ...] | None, modules: Sequence[Any]
) -> list[tuple[Callable[[Tensor], Tensor], list[int]]]:
    """Products, and the widths of the modules' parts of each."""
    if kind is None or len(modules) == 1:
        return [(module, []) for module in modules]
    widths = [module.out_features for module in modules]
    if isinstance(modules[0], RoundedLinear):
        whole, views = concatenate_grouped([module.quantised for module in modules])
        for module, view in zip(modules, views, strict=True):
            module.quantised = view
        biases = [module.float_bias for module in modules]
        return [(RoundedLinear(whole, None if biases[0] is None else torch.cat(biases)), widths)]
    weight = torch.cat([linear.weight.detach() for linear in modules])
    bias = None if modules[0].bias is None else torch.cat([linear.bias.detach() for linear in modules])
    for name, tensor in (("weight", weight), ("bias", bias)):
        for linear, part in zip(modules, () if tensor is None else torch.split(tensor, widths), strict=False):
            setattr(linear, name, nn.Parameter(part, requires_grad=False))
    return [(partial(nn.functional.linear, weight=weight, bias=bias), widths)]


class _Layer:
    """A layer's modules and joined matrices."""

    def __init__(self, layer: Any, spec: AttentionSpec) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.spec = spec
        self.first_norm, self.second_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.head_norms = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.qkv = _Joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = attention.o_proj
        self.gate_up = _Joined([mlp.gate_proj, mlp.up_proj])
        self.down = mlp.down_proj


class _FusedModel:
    """The forward of a model's decoder; without a site, its own. `shape`: of its layers' heads."""

    def __init__(self, decoder: Any, shape: LayerShape, specs: Sequence[AttentionSpec]) -> None:
        self._decoder = decoder
        self.own = decoder.forward
        self._head_dim = shape.key_dim
        self._layers = [_Layer(layer, spec) for layer, spec in zip(decoder.layers, specs, strict=True)]

    def join(self) -> None:
        """Join matrices of the same inputs."""
        for layer in self._layers:
            layer.qkv.join()
            layer.gate_up.join()

    def __call__(
        self,
        input_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        radixkv_site: EmbeddingSite | None = None,
        **others: Any,
    ) -> Any:
        """[1, T] ids and positions -> transformers' output, [1, T, width]."""
        from transformers.modeling_outputs import BaseModelOutputWithPast

        if radixkv_site is None:
            return self.own(input_ids=input_ids, position_ids=position_ids, **others)
        assert input_ids is not None
        hidden = self._decoder.embed_tokens(input_ids)
        cos, sin = (angles[0] for angles in self._decoder.rotary_emb(hidden, position_ids=position_ids))
        hidden, delta = hidden[0], None
        for index, layer in enumerate(self._layers):
            rows = _normed(hidden, delta, layer.first_norm)
            q, k, v = (each.view(len(rows), -1, self._head_dim) for each in layer.qkv(rows))
            attended = radixkv_site.attend_unembedded(
                index, q, k, v, _embedding(cos, sin, *layer.head_norms), layer.spec
            )
            rows = _normed(hidden, layer.out(attended.flatten(1)), layer.second_norm)
            delta = layer.down(gate(*layer.gate_up(rows)))
        return BaseModelOutputWithPast(last_hidden_state=_normed(hidden, delta, self._decoder.norm)[None])


def _normed(hidden: Tensor, delta: Tensor | None, norm: Any) -> Tensor:
    return add_norm(hidden, delta, norm.weight, norm.variance_epsilon)


def _embedding(cos: Tensor, sin: Tensor, q_norm: Any, k_norm: Any) -> HeadEmbedding:
    if q_norm is None:
        return HeadEmbedding(cos, sin)
    return HeadEmbedding(cos, sin, q_norm.weight, k_norm.weight, q_norm.variance_epsilon)


def fuse_decoder(
    model: Any,
    layers: Sequence[LayerShape],
    specs: Sequence[AttentionSpec],
    run: Callable[[Tensor, Tensor, Tensor, AttentionSite], Tensor],
    device: torch.device,
    *,
    joins: bool,
) -> bool:
    """Replace the forward of the model's decoder. Returns whether it was: the model fits, and both ways give the same.

    Args:
        layers, specs: stored shape and attention of each layer.
        run: ids, positions, tokens kept and a site, by the model; returns logits.
        joins: whether to join matrices of the same inputs, which modules with adapters do not allow.
    """
    if type(model).__name__ not in _FAMILY or model.config.hidden_act not in _ACTIVATIONS:
        return False
    if isinstance(model.model.forward, _FusedModel):  # another runner's
        return True
    fused = _FusedModel(model.model, layers[0], specs)
    ids = torch.linspace(0, model.config.vocab_size - 1, _NUM_COMPARED, device=device).long()
    at = torch.arange(_NUM_COMPARED, device=device)
    expected = run(ids, at, at, _site(layers, model.dtype, device, at))
    own = fused.own
    try:
        model.model.forward = fused
        found = run(ids, at, at, _site(layers, model.dtype, device, at))
        apart = float((found - expected).norm() / expected.norm())
    except Exception as error:  # a compiler's or the driver's
        model.model.forward = own
        _LOG.warning("the model runs by its own code, more slowly: its fused kernels failed: %s", error)
        return False
    if not apart <= _MOST_APART[model.dtype]:
        model.model.forward = own
        _LOG.warning("the model runs by its own code, more slowly: the fused kernels' logits are %.2g off", apart)
        return False
    if joins:
        fused.join()
    return True


def _site(layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, slots: Tensor) -> AttentionSite:
    pool = KVPool(layers, 1, _BLOCK_SIZE, dtype, device, layout=Layout.HEAD_MAJOR)
    batch = plan_attention([_NUM_COMPARED], [_NUM_COMPARED], [array("i", [0])], _BLOCK_SIZE, device)
    return StepAttention(pool, batch, slots)
