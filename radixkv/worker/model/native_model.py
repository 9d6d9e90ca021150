"""A model of the Llama family, run by the native decoder instead of its own code.

Only known model classes are taken, and only if all their matrices are of 8 or 4 bits. Before use, a short prompt is run both
ways. Any model that does not fit runs its own code.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int32
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import AttentionBatch, plan_attention
from radixkv.kernels.cpu.native_decoder import DecoderLayer, DecoderWeights, NativeDecoder
from radixkv.kernels.cpu.rounded_linear import Linear, concatenate_rounded
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.runtime.huge_pages import HugePages
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.loading.packed_linear import RoundedLinear
from radixkv.worker.model.attention import GivenUpError, StepAttention
from radixkv.worker.model.kv_pool import KVPool, LayerShape

__all__ = ["NativeModel", "find_native_model", "make_native_model"]

_LOG = logging.getLogger(__name__)

_FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Decoders of one shape: RMS norms, rotated halves of heads, gated MLPs, and nothing else between the matrices."""

_ACTIVATIONS = ("silu", "swish")
"""transformers' names of the one activation that the decoder has."""

_CPU = torch.device("cpu")
_NUM_COMPARED = 8
_MOST_APART = {torch.float32: 1e-3, torch.bfloat16: 0.04}
"""Of the logits' norm: 0.013 to 0.015 of SmolLM2's in bfloat16."""


class NativeModel:
    """Runs the decoder on a step's tokens."""

    def __init__(self, model: Any, decoder: NativeDecoder) -> None:
        self._angles = _Angles(model.model.rotary_emb)
        self._decoder = decoder
        self.dtype = decoder.dtype

    def check_pool(self, pool: KVPool) -> None:
        """Reject a pool that the decoder cannot read.

        Raises:
            InvalidArgumentError: its blocks are of an odd number of tokens, in a dtype of two bytes.
        """
        try:
            self._decoder.check_caches(pool.caches)
        except InvalidArgumentError as error:
            bound = f"even: the native decoder reads {self.dtype} in pairs of tokens; or leave the weights unrounded"
            raise InvalidArgumentError("block_size", pool.block_size, bound) from error

    def forward(
        self,
        inputs: npt.NDArray[np.int64],
        kept: Sequence[int],
        pool: KVPool,
        batch: AttentionBatch,
        is_unwanted: c_int32 | None = None,
        windowed: tuple[AttentionBatch, npt.NDArray[np.int64]] | None = None,
    ) -> Tensor:
        """Float32 logits of the tokens in `kept` of [3, T] tokens: ids, positions, and slots of the pool for their K and V.

        `windowed`: as of `NativeDecoder.run`.

        Raises:
            GivenUpError: `is_unwanted` became 1.
        """
        cosines, sines = self._angles.up_to(max(batch.host_context_lens, default=0))
        with torch.inference_mode():
            logits = self._decoder.run(inputs, kept, cosines, sines, pool.caches, batch, is_unwanted, windowed)
        if logits is None:
            raise GivenUpError
        return logits


class _Angles:
    """Cosines and sines of all positions so far, from the model's own code and cached: lookups are faster."""

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        self._cosines, self._sines = self._compute(1)

    def up_to(self, end: int) -> tuple[Tensor, Tensor]:
        """[at least `end`, D] each, float32."""
        if end > len(self._cosines):
            self._cosines, self._sines = self._compute(1 << (end - 1).bit_length())
        return self._cosines, self._sines

    def _compute(self, end: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            cosines, sines = self._rotary(torch.empty(0), torch.arange(end)[None])
        return cosines[0].contiguous(), sines[0].contiguous()


def find_native_model(
    model: Any,
    layers: Sequence[LayerShape],
    specs: Sequence[AttentionSpec],
    run: Callable[[Tensor, Tensor, Tensor, StepAttention], Tensor],
    kv_format: KVFormat | None = None,
) -> NativeModel | None:
    """The model on the native decoder, or None if it does not fit.

    Args:
        model: on a CPU, its linear layers packed.
        layers, specs: stored shape and attention of each layer.
        run: ids, positions, tokens kept and a site, by the model's own code; returns logits.
        kv_format: of its later pools. The two ways are compared over plain pools, where they differ least.
    """
    if type(model).__name__ not in _FAMILY or model.config.hidden_act not in _ACTIVATIONS:
        return None
    try:
        native = make_native_model(model, layers, specs, kv_format)
    except (_NotRoundedError, InvalidArgumentError) as reason:
        _LOG.debug("the model runs by its own code: %s", reason)
        return None
    apart, most = _compare(model, native, layers, run), _MOST_APART[native.dtype]
    if not apart <= most:
        _LOG.warning("the model runs by its own code, more slowly: the native decoder's logits are %.2g off", apart)
        return None
    return native


def make_native_model(
    model: Any, layers: Sequence[LayerShape], specs: Sequence[AttentionSpec], kv_format: KVFormat | None
) -> NativeModel:
    """As `find_native_model`, of a model that is known to fit.

    Raises:
        InvalidArgumentError, _NotRoundedError: the model does not fit.
    """
    decoder = NativeDecoder(_weights(model, layers, specs))
    decoder.check_caches(KVPool(layers, 1, _NUM_COMPARED, decoder.dtype, _CPU, kv_format=kv_format).caches)
    return NativeModel(model, decoder)


class _NotRoundedError(Exception):
    """A matrix that is not of 8 or 4 bits."""


def _weights(model: Any, layers: Sequence[LayerShape], specs: Sequence[AttentionSpec]) -> DecoderWeights:
    config = model.config
    shape = layers[0]
    pages = _pages_for(model)
    return DecoderWeights(
        embeddings=model.get_input_embeddings().weight.detach().contiguous(),
        layers=[_layer(layer, spec, pages) for layer, spec in zip(model.model.layers.children(), specs, strict=True)],
        head=_linear(model.lm_head, pages),
        last_norm=model.model.norm.weight.detach().float(),
        num_heads=config.num_attention_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.key_dim,
        norm_epsilon=config.rms_norm_eps,
    )


def _pages_for(model: Any) -> HugePages:
    """Room for all matrices, in the order in which a step reads them."""
    weights = [module.quantised for module in model.modules() if isinstance(module, RoundedLinear)]
    tensors = [tensor for weight in weights for tensor in weight.tensors]
    return HugePages(sum(HugePages.aligned(tensor.nbytes) for tensor in tensors))


def _layer(layer: Any, spec: AttentionSpec, pages: HugePages) -> DecoderLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return DecoderLayer(
        qkv=_joined(pages, attention.q_proj, attention.k_proj, attention.v_proj),
        attention_out=_linear(attention.o_proj, pages),
        gate_up=_joined(pages, mlp.gate_proj, mlp.up_proj),
        down=_linear(mlp.down_proj, pages),
        attention_norm=layer.input_layernorm.weight.detach().float(),
        mlp_norm=layer.post_attention_layernorm.weight.detach().float(),
        q_norm=None if q_norm is None else q_norm.weight.detach().float(),
        k_norm=None if k_norm is None else k_norm.weight.detach().float(),
        attention=spec,
    )


def _linear(module: Any, pages: HugePages) -> Linear:
    return _joined(pages, module)


def _joined(pages: HugePages, *modules: Any) -> Linear:
    """Matrices with the same inputs as one, as far as of one kind; the modules keep parts of its memory."""
    for module in modules:
        if not isinstance(module, RoundedLinear):
            raise _NotRoundedError(f"a matrix is a {type(module).__name__}")
    first = list(takewhile(lambda module: module.quantised.kind == modules[0].quantised.kind, modules))
    whole, parts = concatenate_rounded([module.quantised for module in first], pages)
    for module, part in zip(first, parts, strict=True):
        module.quantised = part
    following = _joined(pages, *modules[len(first) :]) if len(first) < len(modules) else None
    biases = [module.float_bias for module in first]
    if all(bias is None for bias in biases):
        return Linear(whole, None, following)
    filled = [torch.zeros(part.num_outputs) if bias is None else bias for bias, part in zip(biases, parts, strict=True)]
    return Linear(whole, torch.cat(filled), following)


@contextmanager
def _float32_between_matrices(model: Any) -> Iterator[None]:
    """Pass float32 between a model's matrices, each of which rounds its inputs as usual."""
    hooks = [model.get_input_embeddings().register_forward_hook(lambda _module, _inputs, output: output.float())]
    for module in model.modules():
        if isinstance(module, RoundedLinear):
            hooks.append(module.register_forward_pre_hook(_round_inputs))
            hooks.append(module.register_forward_hook(lambda _module, _inputs, output: output.float()))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _round_inputs(module: RoundedLinear, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].to(module.quantised.dtype),)


def _compare(
    model: Any,
    native: NativeModel,
    layers: Sequence[LayerShape],
    run: Callable[[Tensor, Tensor, Tensor, StepAttention], Tensor],
) -> float:
    """Difference of the two ways' logits of a short prompt, relative to their norm.

    The model keeps float32 between its matrices meanwhile, like the decoder. Rounded to bfloat16 there, its own logits for the
    30 layers of SmolLM2 are 0.04 to 0.08 off.
    """
    token_ids = np.linspace(0, model.config.vocab_size - 1, _NUM_COMPARED).astype(np.int64)
    positions = np.arange(_NUM_COMPARED)
    batch = plan_attention([_NUM_COMPARED], [_NUM_COMPARED], [array("i", [0])], _NUM_COMPARED, "cpu")
    own, pool = (KVPool(layers, 1, _NUM_COMPARED, dtype, _CPU) for dtype in (torch.float32, native.dtype))
    ids, at = torch.from_numpy(token_ids), torch.from_numpy(positions)
    with _float32_between_matrices(model):
        expected = run(ids, at, at, StepAttention(own, batch, at))
    found = native.forward(np.stack([token_ids, positions, positions]), range(_NUM_COMPARED), pool, batch)
    return float((found - expected).norm() / expected.norm())
