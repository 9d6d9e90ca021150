"""A whole decoder of the Llama family in one call on a CPU, from a step's tokens to its logits.

    first        hidden = embeddings of the tokens
    per layer    x = norm(hidden);  q, k, v = x Wqkv + b;  heads of q and k normed, where the model does, and rotated
                 k and v go to their slots;  hidden += paged attention(q) Wo + b
                 x = norm(hidden);  hidden += (silu(x Wgate + b) * (x Wup + b)) Wdown + b
    at the end   logits = norm(hidden) Whead + b, of the requested tokens

    norm(x) = x / sqrt(mean(x^2) + epsilon) * weight        rotated: pairs (i, i + D/2), by the given cosines and sines

Caches of fewer bits get k and v as `write_kv` writes them, quantised from fp32.

Calling the kernels one by one from Python costs more than a third of a small model's step, and holds the GIL. Here one call
runs them all, over the same caches and plans, and other threads run meanwhile.

Dtypes: weights of 8 or 4 bits; queries float32 or bfloat16, caches alike or in fewer bits; hidden, sums and logits fp32;
inputs of a matrix are rounded to 16 bits (`rounded_linear`). A token's logits do not depend on the rest of the step, unless
attention reads blocks once for several rows (`plan_attention(shares=...)`). Needs the native kernels.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.batch import AttentionBatch, Scratch
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.cpu.native_attention import plan_native_call
from radixkv.kernels.cpu.rounded_linear import GROUP_SIZE, PANEL, ROUNDED_GROUP_BYTES, Linear, NativeWeight
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.native_cache import NativeKVCache
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.spec import AttentionSpec

__all__ = ["DecoderLayer", "DecoderWeights", "Linear", "NativeDecoder"]

_FUNCTIONS = {torch.float32: "radixkv_decode_float32", torch.bfloat16: "radixkv_decode_bfloat16"}
_ANY = 1 << 31
"""Blocks of the caches of no layer."""

_Pointer = ctypes.c_void_p


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """Weights of one layer; norms are float32.

    Attributes:
        qkv: [(Hq + 2 Hkv) D, hidden], heads of q, then of k, then of v. attention_out: [hidden, Hq D].
        gate_up: [2 intermediate, hidden], the gates first. down: [hidden, intermediate].
        attention_norm, mlp_norm: [hidden]. q_norm, k_norm: [D], or None.
        attention: of the layer; without sinks.
    """

    qkv: Linear
    attention_out: Linear
    gate_up: Linear
    down: Linear
    attention_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    attention: AttentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """All layers, the embeddings before them ([vocabulary, hidden] in the dtype of activations), the head after them
    ([vocabulary, hidden], with `last_norm` [hidden] float32), and the sizes.
    """

    embeddings: Tensor
    layers: Sequence[DecoderLayer]
    head: Linear
    last_norm: Tensor
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, NativeWeight) for name in ("qkv", "attention_out", "gate_up", "down")),
        *((name, _Pointer) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("layers", _Pointer),
        ("head", NativeWeight),
        ("embeddings", _Pointer),
        ("last_norm", _Pointer),
        *(
            (name, ctypes.c_int32)
            for name in (
                "num_layers",
                "hidden_size",
                "intermediate_size",
                "num_heads",
                "num_kv_heads",
                "head_dim",
            )
        ),
        ("norm_epsilon", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("token_ids", "positions", "slots", "kept", "cosines", "sines")),
        *((name, _Pointer) for name in ("attention", "works", "caches", "logits", "seconds", "is_unwanted")),
        *((name, _Pointer) for name in ("rounded", "q", "attended", "hidden", "qkv", "gate_up")),
        ("num_tokens", ctypes.c_int64),
        ("num_kept", ctypes.c_int64),
        ("num_threads", ctypes.c_int32),
    )


class NativeDecoder:
    """The kernel, and the weights that it points to. For one thread at a time.

    Attributes:
        dtype: of activations and caches.
        linear_bytes: of the weights read in a step.
        seconds: if set, float64 [3] to which every run adds the times of matrices, of attention, and of norms, rotation and
            gates.

    Raises:
        InvalidArgumentError: mismatched weights, or no native kernels.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        library = native_library()
        if library is None:
            raise InvalidArgumentError(
                "weights", "rounded", "run by a model of its own where there are no native kernels"
            )
        self._library = library
        self._weights = weights
        self.dtype = weights.head.weight.dtype
        self.seconds: npt.NDArray[np.float64] | None = None
        self._hidden_size = int(weights.last_norm.shape[0])
        intermediate_size = weights.layers[0].down.weight.num_inputs
        _check(weights, self._hidden_size, intermediate_size)
        self._function: Any = library[_FUNCTIONS[self.dtype]]
        self._function.argtypes = (_Pointer, _Pointer)
        self._function.restype = ctypes.c_bool
        self._kept: list[NativeWeight] = []  # structures point to them
        layers = (_Layer * len(weights.layers))(*(_native_layer(layer, self._kept) for layer in weights.layers))
        self._decoder = _Decoder(
            layers=ctypes.addressof(layers),
            head=weights.head.native(self._kept),
            embeddings=weights.embeddings.data_ptr(),
            last_norm=weights.last_norm.data_ptr(),
            num_layers=len(weights.layers),
            hidden_size=self._hidden_size,
            intermediate_size=intermediate_size,
            num_heads=weights.num_heads,
            num_kv_heads=weights.num_kv_heads,
            head_dim=weights.head_dim,
            norm_epsilon=weights.norm_epsilon,
        )
        self._layers = layers  # the structure points to them
        specs = [layer.attention for layer in weights.layers]
        kinds = [(spec.scale, spec.sliding_window, spec.softcap) for spec in specs]
        self._attention_kinds = list(dict(zip(kinds, specs, strict=True)).values())
        self._kind_of_layer = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]
        self._is_windowed = [spec.sliding_window is not None for spec in specs]
        self._caches: Sequence[KVCache] = ()
        self._num_blocks = (0, 0)  # of the caches of layers without a window, and of the others
        self._native_caches = (NativeKVCache * 0)()
        self._buffer_sizes = (0, 0)
        self._buffer_addresses: tuple[int, ...] = ()
        linears = [weights.head, *chain.from_iterable(map(_linears, weights.layers))]
        parts = chain.from_iterable(linear.parts for linear in linears)
        self.linear_bytes = sum(tensor.nbytes for part in parts for tensor in part.weight.tensors)

    def run(
        self,
        inputs: npt.NDArray[np.int64],
        kept: Sequence[int],
        cosines: Tensor,
        sines: Tensor,
        caches: Sequence[KVCache],
        batch: AttentionBatch,
        is_unwanted: ctypes.c_int32 | None = None,
        windowed: tuple[AttentionBatch, npt.NDArray[np.int64]] | None = None,
    ) -> Tensor | None:
        """Compute T tokens: write their K and V, and return the logits of those in `kept`.

        Args:
            inputs: [3, T]: token ids, positions, and slots for K and V; below 0: none.
            kept: [K], tokens by their index in the step.
            cosines, sines: [positions, D] float32, of the rotary angles of all positions up to the last.
            caches: per layer, from `allocate_kv`, in `dtype` and one format; referenced until the next ones are given.
            batch: the step's sequences, T rows.
            is_unwanted: another thread may set it to 1: the step is then given up after the layer that runs.
            windowed: the sequences over the blocks of layers with a sliding window, and [T] slots there, if they differ.

        Returns:
            [K, vocabulary] float32; None if the step was given up: some K and V are written, to be written again.

        Raises:
            InvalidArgumentError: a mismatched length, shape, dtype, token, position, slot or block id.
        """
        weights, num_tokens = self._weights, batch.num_tokens
        native_caches = self._native_caches_of(caches, batch)
        self._check_step(inputs, kept, (cosines, sines), batch)
        inputs = np.ascontiguousarray(inputs, dtype=np.int64)
        steps = [(batch, inputs[2]), windowed or (batch, inputs[2])]
        for (over, slots), num_blocks in zip(steps, self._num_blocks, strict=True):
            _check_blocks(over, slots, num_blocks)
        cosines, sines = cosines.contiguous(), sines.contiguous()
        # Not torch's allocation, which lets other Python threads run before the kernel instead of during it.
        logits = torch.from_numpy(np.empty((len(kept), weights.head.num_outputs), np.float32))
        if not num_tokens:
            return logits
        calls = [
            plan_native_call(
                self._library, weights.num_heads, caches[0], steps[spec.sliding_window is not None][0], spec
            )
            for spec in self._attention_kinds
        ]
        attention = _pointers([calls[kind].layer for kind in self._kind_of_layer])
        works = _pointers([calls[kind].work for kind in self._kind_of_layer])
        slots = _pointers([steps[is_windowed][1].ctypes.data for is_windowed in self._is_windowed])
        wanted = array("q", kept)
        address, row_bytes = inputs.ctypes.data, inputs.strides[0]
        step = _Step(
            *(address, address + row_bytes, ctypes.addressof(slots)),
            wanted.buffer_info()[0],
            cosines.data_ptr(),
            sines.data_ptr(),
            *map(ctypes.addressof, (attention, works, native_caches)),
            logits.data_ptr(),
            None if self.seconds is None else self.seconds.ctypes.data,
            None if is_unwanted is None else ctypes.addressof(is_unwanted),
            *self._buffers(num_tokens, len(kept), batch.scratch),
            num_tokens,
            len(kept),
            torch.get_num_threads(),
        )
        return logits if self._function(ctypes.addressof(self._decoder), ctypes.addressof(step)) else None

    def _check_step(
        self,
        inputs: npt.NDArray[np.int64],
        kept: Sequence[int],
        angles: tuple[Tensor, Tensor],
        batch: AttentionBatch,
    ) -> None:
        """Reject invalid arguments of `run`, caches excluded."""
        weights, num_tokens = self._weights, batch.num_tokens
        if inputs.shape != (3, num_tokens):
            raise InvalidArgumentError("inputs.shape", inputs.shape, f"(3, {num_tokens}), of the batch's rows")
        for name, table in zip(("cosines", "sines"), angles, strict=True):
            check_tensor(name, table, (None, weights.head_dim), (torch.float32,), torch.device("cpu"))
        least, most = inputs.min(axis=1, initial=0).tolist(), inputs.max(axis=1, initial=-1).tolist()
        _check_range("token_ids", least[0], most[0], weights.embeddings.shape[0])
        _check_range("positions", least[1], most[1], min(table.shape[0] for table in angles))
        _check_range("kept", min(kept, default=0), max(kept, default=-1), num_tokens)

    def _buffers(self, num_tokens: int, num_kept: int, scratch: Scratch) -> tuple[int, ...]:
        """Addresses of the buffers between the kernels of a layer: inputs of the matrices; q and attended in `dtype`; hidden,
        qkv and gate_up in float32. The previous step's, if it had the same size.
        """
        sizes = (num_tokens, num_kept)
        if sizes == self._buffer_sizes:
            return self._buffer_addresses
        weights, intermediate_size = self._weights, self._decoder.intermediate_size
        q_size, kv_size = weights.num_heads * weights.head_dim, weights.num_kv_heads * weights.head_dim
        like, most_inputs = weights.last_norm, max(self._hidden_size, q_size, intermediate_size)
        rounded_bytes = most_inputs // GROUP_SIZE * ROUNDED_GROUP_BYTES
        buffers = (
            scratch.take("rounded", (max(num_tokens, num_kept), rounded_bytes), like, torch.uint8),
            scratch.take("q", (num_tokens, q_size), like, self.dtype),
            scratch.take("attended", (num_tokens, q_size), like, self.dtype),
            scratch.take("hidden", (num_tokens, self._hidden_size), like),
            scratch.take("qkv", (num_tokens, q_size + 2 * kv_size), like),
            scratch.take("gate_up", (num_tokens, 2 * intermediate_size), like),
        )
        self._buffers_in_use = buffers  # scratch of these names may move for other users
        self._buffer_sizes, self._buffer_addresses = sizes, tuple(buffer.data_ptr() for buffer in buffers)
        return self._buffer_addresses

    def _native_caches_of(self, caches: Sequence[KVCache], batch: AttentionBatch) -> ctypes.Array[NativeKVCache]:
        """The structures of the caches; the previous run's if the caches are the same."""
        if caches is not self._caches:
            self.check_caches(caches)
            self._native_caches = (NativeKVCache * len(caches))(*map(NativeKVCache.of, caches))
            self._caches = caches
            sizes = [cache.num_blocks for cache in caches]
            whole = [size for size, is_windowed in zip(sizes, self._is_windowed, strict=True) if not is_windowed]
            self._num_blocks = min(whole, default=_ANY), min(sizes)
        if batch.block_size != caches[0].block_size:
            raise InvalidArgumentError(
                "batch.block_size", batch.block_size, f"{caches[0].block_size}, as of the caches"
            )
        return self._native_caches

    def check_caches(self, caches: Sequence[KVCache]) -> None:
        """Reject caches that `run` cannot use.

        Raises:
            InvalidArgumentError: names the mismatch.
        """
        weights = self._weights
        if len(caches) != len(weights.layers):
            raise InvalidArgumentError("len(caches)", len(caches), f"{len(weights.layers)}, one per layer")
        first = caches[0]
        wanted = (
            *(Layout.TRANSPOSED, first.block_size, weights.num_kv_heads),
            *(weights.head_dim, weights.head_dim, self.dtype, first.format),
        )
        for cache in caches:
            found = (
                *(cache.layout, cache.block_size, cache.num_kv_heads),
                *(cache.head_dim, cache.v_head_dim, cache.dtype, cache.format),
            )
            if found != wanted:
                raise InvalidArgumentError("caches", found, f"{wanted}")


def _check(weights: DecoderWeights, hidden_size: int, intermediate_size: int) -> None:
    num_heads, num_kv_heads, dim = weights.num_heads, weights.num_kv_heads, weights.head_dim
    if num_heads % num_kv_heads or dim % 2:
        raise InvalidArgumentError("heads", (num_heads, num_kv_heads, dim), "whole groups of heads of an even size")
    shapes = {
        "qkv": ((num_heads + 2 * num_kv_heads) * dim, hidden_size),
        "attention_out": (hidden_size, num_heads * dim),
        "gate_up": (2 * intermediate_size, hidden_size),
        "down": (hidden_size, intermediate_size),
    }
    for layer in weights.layers:
        for name, shape in shapes.items():
            _check_linear(name, getattr(layer, name), shape, weights.head.weight.dtype)
        for name, width in (
            ("attention_norm", hidden_size),
            ("mlp_norm", hidden_size),
            ("q_norm", dim),
            ("k_norm", dim),
        ):
            norm = getattr(layer, name)
            if norm is not None:
                check_tensor(name, norm, (width,), (torch.float32,), torch.device("cpu"))
        if layer.attention.sinks is not None:
            raise InvalidArgumentError("attention.sinks", "given", "None")
    vocabulary, dtype = weights.head.num_outputs, weights.head.weight.dtype
    check_tensor("embeddings", weights.embeddings, (None, hidden_size), (dtype,), torch.device("cpu"))
    check_tensor("last_norm", weights.last_norm, (hidden_size,), (torch.float32,), torch.device("cpu"))
    _check_linear("head", weights.head, (vocabulary, hidden_size), dtype)


def _check_linear(name: str, linear: Linear, shape: tuple[int, int], dtype: torch.dtype) -> None:
    found = (linear.num_outputs, *{(part.weight.num_inputs, part.weight.dtype) for part in linear.parts})
    if found != (shape[0], (shape[1], dtype)):
        raise InvalidArgumentError(name, found, f"{(*shape, dtype)}")
    for part in linear.parts:
        if part.following and part.weight.num_outputs % PANEL:
            raise InvalidArgumentError(name, part.weight.num_outputs, f"a multiple of {PANEL} where others follow")
        if part.bias is not None:
            check_tensor(f"{name}.bias", part.bias, (part.weight.num_outputs,), (torch.float32,), torch.device("cpu"))


def _check_blocks(batch: AttentionBatch, slots: npt.NDArray[np.int64], num_blocks: int) -> None:
    if batch.highest_block >= num_blocks:
        raise InvalidArgumentError("batch.highest_block", batch.highest_block, f"below {num_blocks}, the pool")
    _check_range("slots", 0, int(slots.max(initial=-1)), num_blocks * batch.block_size)


def _check_range(name: str, least: int, most: int, end: int) -> None:
    if least < 0 or most >= end:
        raise InvalidArgumentError(name, *((least, "at least 0") if least < 0 else (most, f"below {end}")))


def _native_layer(layer: DecoderLayer, kept: list[NativeWeight]) -> _Layer:
    norms = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
    return _Layer(
        *(linear.native(kept) for linear in _linears(layer)),
        *(None if norm is None else norm.data_ptr() for norm in norms),
    )


def _linears(layer: DecoderLayer) -> tuple[Linear, ...]:
    return (layer.qkv, layer.attention_out, layer.gate_up, layer.down)


def _pointers(addresses: Sequence[int]) -> ctypes.Array[Any]:
    return (_Pointer * len(addresses))(*addresses)
