"""The plan: use of a device's memory while serving a model.

memory x utilisation
|-- weights --|-- activations --|-- workspace --|------------ KV: blocks of block_size tokens ------------|
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner.dtypes import DTYPES, KV_DTYPES, ROUNDED_DTYPES
from radixkv.planner.errors import PlanError
from radixkv.planner.fit import advise_block_size, check_block_size, check_fit, count_blocks
from radixkv.planner.shape import LayerKV, ModelShape
from radixkv.planner.sizes import format_bytes

__all__ = ["Device", "Load", "MemoryPlan", "estimate_activations", "plan_memory"]

DEFAULT_UTILISATION = 0.90
_LENGTH_WITHOUT_CONFIG = 2048
_DEFAULT_WORKSPACE_BYTES = 512 << 20
_SAMPLING_BYTES = 24
"""Per logit: fp32 logits, their sorted copy with 64-bit indices, and the sums that top-p cuts at."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of the serving devices.

    Attributes:
        memory_bytes: all of its memory.
        utilisation: share of it to use, above 0 and at most 1.
        workspace_bytes: for the driver's context, libraries and fragmentation: all but weights, activations and KV.
    """

    memory_bytes: int
    utilisation: float = DEFAULT_UTILISATION
    workspace_bytes: int = _DEFAULT_WORKSPACE_BYTES


@dataclass(frozen=True, slots=True)
class Load:
    """Load to serve at once.

    Attributes:
        max_model_len: tokens of the longest sequence; None: the model's length.
        max_num_seqs: concurrent sequences; None: as many as fit.
        max_batch_tokens: positions of one forward.
        rope_scaling: how many times the model's own length its rotary positions are stretched to.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_batch_tokens: int = 320
    rope_scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Result of `plan_memory`. Sizes are in bytes and of one device; `None` without a device.

    Attributes:
        shape: of the model.
        dtype, kv_dtype, tp, block_size, max_model_len, max_num_seqs, layout: inputs of the plan.
        weight_bytes, activation_bytes: as named; activations are an estimate.
        token_bytes: of one more token over all layers, before any window is full.
        block_bytes: of one block over all layers.
        sequence_bytes: of one sequence of `max_model_len` tokens in whole blocks, within windows.
        device: the device, or None.
        kv_bytes: left for KV.
        num_blocks, num_tokens: blocks that fit, and their token slots.
        num_full_sequences: sequences of `max_model_len` tokens that fit at once.
    """

    shape: ModelShape
    dtype: str
    kv_dtype: str
    layout: str
    tp: int
    block_size: int
    max_model_len: int
    max_num_seqs: int | None
    weight_bytes: int
    activation_bytes: int
    token_bytes: int
    block_bytes: int
    sequence_bytes: int
    device: Device | None = None
    kv_bytes: int | None = None
    num_blocks: int | None = None
    num_tokens: int | None = None
    num_full_sequences: int | None = None

    def bytes_at(self, num_tokens: int) -> int:
        """KV bytes of one sequence of `num_tokens` tokens, not rounded to blocks, within windows."""
        return _sequence_bytes(_layers(self.shape, self.layout, self.tp), self.kv_dtype, num_tokens, 1)

    @property
    def advised_block_size(self) -> int:
        """For the load: `max_num_seqs` sequences in the whole pool, at most of `max_model_len`; see `advise_block_size`."""
        if self.num_tokens is None or self.max_num_seqs is None:
            return advise_block_size(None)
        return advise_block_size(min(self.max_model_len, self.num_tokens // self.max_num_seqs))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: flat, sizes in bytes."""
        device = self.device
        return {
            "model": self.shape.name,
            "model_type": self.shape.model_type,
            "num_parameters": self.shape.num_parameters,
            "num_layers": len(self.shape.layers),
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "kv_layout": self.layout,
            "tp": self.tp,
            "block_size": self.block_size,
            "advised_block_size": self.advised_block_size,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "weight_bytes": self.weight_bytes,
            "activation_bytes": self.activation_bytes,
            "kv_bytes_per_token": self.token_bytes,
            "kv_bytes_per_block": self.block_bytes,
            "kv_bytes_per_full_sequence": self.sequence_bytes,
            "memory_bytes": device.memory_bytes if device else None,
            "utilisation": device.utilisation if device else None,
            "workspace_bytes": device.workspace_bytes if device else None,
            "kv_bytes": self.kv_bytes,
            "num_blocks": self.num_blocks,
            "num_tokens": self.num_tokens,
            "num_full_sequences": self.num_full_sequences,
        }


def plan_memory(
    shape: ModelShape,
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    block_size: int = 16,
    load: Load | None = None,
    device: Device | None = None,
    tp: int = 1,
    layout: str = "least",
) -> MemoryPlan:
    """Plan the memory; without a device, only the model's own needs. O(layers).

    Args:
        shape: of the model.
        dtype: of the weights, one of `DTYPES`, or ``"auto"``: as published.
        kv_dtype: of K and V, one of `KV_DTYPES`, or ``"auto"``: as the weights, 16 bits where those have fewer.
        block_size: token slots of a block.
        load: the load to serve.
        device: each of the `tp` devices.
        tp: devices that share every layer: weights are split evenly, and kv heads if there are enough. Each device holds all
            latents, and all heads if there are fewer than devices.
        layout: ``"least"``, the least that the attention must keep; or ``"stored"``, this worker's pool (see `ModelShape`).

    Raises:
        InvalidArgumentError: an argument is out of bounds.
        PlanError: the model does not fit; names the missing memory.
    """
    load = load or Load()
    dtype = shape.dtype if dtype == "auto" else dtype
    if dtype not in DTYPES:
        raise InvalidArgumentError("dtype", dtype, f"auto, {', '.join(DTYPES)}")
    if kv_dtype == "auto":
        kv_dtype = _own_kv_dtype(dtype)
    if kv_dtype not in KV_DTYPES:
        raise InvalidArgumentError("kv_dtype", kv_dtype, f"auto, {', '.join(KV_DTYPES)}")
    check_block_size(block_size)
    _check(shape, load, tp, layout)
    max_model_len = load.max_model_len or shape.max_length or _LENGTH_WITHOUT_CONFIG
    layers = _layers(shape, layout, tp)
    for width in (width for layer in layers for width in layer.vector_dims):
        if not KV_DTYPES[kv_dtype].takes(width):
            bound = f"another one for heads of {width} channels: it packs two into a byte"
            raise InvalidArgumentError("kv_dtype", kv_dtype, bound)
    token_bytes = sum(layer.token_bytes(KV_DTYPES[kv_dtype]) for layer in layers)
    if not token_bytes:
        raise PlanError(f"{shape.name} keeps nothing per token, so it needs no blocks")
    plan = MemoryPlan(
        shape=shape,
        dtype=dtype,
        kv_dtype=kv_dtype,
        layout=layout,
        tp=tp,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=load.max_num_seqs,
        weight_bytes=_weight_bytes(shape, dtype, tp),
        activation_bytes=estimate_activations(shape, dtype, load, tp),
        token_bytes=token_bytes,
        block_bytes=token_bytes * block_size,
        sequence_bytes=_sequence_bytes(layers, kv_dtype, max_model_len, block_size),
    )
    return plan if device is None else _fill(plan, device)


def estimate_activations(shape: ModelShape, dtype: str, load: Load, tp: int = 1) -> int:
    """Rule of thumb for the peak bytes of a forward. Per position: the residual stream twice, and the larger of the attention's
    inputs and output and the MLP's three intermediates. Per sequence: its logits.

    A worker measures this instead, with a forward of `max_batch_tokens`.
    """
    heads = shape.num_query_heads
    widest = max(shape.stored_layers, key=lambda layer: layer.key_dim + layer.value_dim, default=LayerKV(0, 0, 0))
    output = widest.value_dim or widest.key_dim  # a latent's value is most of its row
    attention = heads * (widest.key_dim + output) + widest.num_heads * (widest.key_dim + widest.value_dim)
    position = 2 * shape.hidden_size + max(attention, 3 * shape.feed_forward_size) // tp
    num_sequences = min(load.max_num_seqs or 64, load.max_batch_tokens)
    logits = num_sequences * shape.vocab_size * (DTYPES[dtype] + _SAMPLING_BYTES)
    return math.ceil(load.max_batch_tokens * position * max(2, DTYPES[dtype]) + logits)


def _weight_bytes(shape: ModelShape, dtype: str, tp: int) -> int:
    """Of one device; norms and routers count as matrices."""
    if dtype not in ROUNDED_DTYPES:
        return math.ceil(-(-shape.num_parameters // tp) * DTYPES[dtype])
    embeddings = shape.vocab_size * shape.hidden_size
    num_rounded = shape.num_parameters - (0 if shape.is_tied else embeddings)
    return math.ceil((num_rounded * DTYPES[dtype] + embeddings * DTYPES["bfloat16"]) / tp)


def _check(shape: ModelShape, load: Load, tp: int, layout: str) -> None:
    for argument, value in (
        ("max_model_len", load.max_model_len),
        ("max_num_seqs", load.max_num_seqs),
        ("max_batch_tokens", load.max_batch_tokens),
        ("tp", tp),
    ):
        if value is not None and value < 1:
            raise InvalidArgumentError(argument, value, "at least 1")
    if not 1 <= load.rope_scaling < math.inf:
        raise InvalidArgumentError("rope_scaling", load.rope_scaling, "at least 1 and finite")
    longest = int((shape.max_length or 0) * load.rope_scaling)
    if load.max_model_len and longest and load.max_model_len > longest:
        needed = math.ceil(100 * load.max_model_len / (shape.max_length or 1)) / 100
        made_for = f"at most {longest}, which {shape.name} was made for"
        if load.rope_scaling > 1:
            made_for = f"at most {longest}, {load.rope_scaling:g} times the length of {shape.name}"
        raise InvalidArgumentError(
            "max_model_len", load.max_model_len, f"{made_for}; --rope-scaling {needed:g} goes so far"
        )
    if shape.num_query_heads % tp:
        raise InvalidArgumentError("tp", tp, f"a divisor of the model's {shape.num_query_heads} query heads")
    for num_heads in {layer.num_heads for layer in shape.layers if layer.num_heads}:
        if max(num_heads, tp) % min(num_heads, tp):  # as a worker's --tensor-parallel
            bound = f"a divisor of the model's {num_heads} KV heads, or a multiple of {num_heads}"
            raise InvalidArgumentError("tp", tp, bound)
    if layout not in ("least", "stored"):
        raise InvalidArgumentError("layout", layout, "least or stored")


def _fill(plan: MemoryPlan, device: Device) -> MemoryPlan:
    if not 0 < device.utilisation <= 1:
        raise InvalidArgumentError("utilisation", device.utilisation, "above 0 and at most 1")
    for argument, size in (("memory", device.memory_bytes), ("workspace", device.workspace_bytes)):
        if size < 0:
            raise InvalidArgumentError(argument, size, "at least 0")
    usable = int(device.memory_bytes * device.utilisation)
    taken = plan.weight_bytes + plan.activation_bytes + device.workspace_bytes
    if usable <= taken:
        raise PlanError(
            f"{device.utilisation:g} of {format_bytes(device.memory_bytes)} is {format_bytes(usable)}; weights take "
            f"{format_bytes(plan.weight_bytes)}, activations {format_bytes(plan.activation_bytes)}, workspace "
            f"{format_bytes(device.workspace_bytes)}, and nothing is left for KV: give more memory, more devices (--tp) "
            "or a smaller --dtype"
        )
    kv_bytes = usable - taken
    full_blocks = -(-plan.max_model_len // plan.block_size)
    most = plan.max_num_seqs and plan.max_num_seqs * full_blocks
    num_blocks = count_blocks(kv_bytes, plan.block_bytes, most)
    num_full = kv_bytes // plan.sequence_bytes
    if not num_full:
        check_fit(plan.max_model_len, plan.block_size, num_blocks, "give more memory, or a smaller --kv-dtype")
        raise PlanError(
            f"one sequence takes {format_bytes(plan.sequence_bytes)} and {format_bytes(kv_bytes)} are left for KV"
        )
    return replace(
        plan,
        device=device,
        kv_bytes=kv_bytes,
        num_blocks=num_blocks,
        num_tokens=num_blocks * plan.block_size,
        num_full_sequences=min(num_full, plan.max_num_seqs or num_full),
    )


def _layers(shape: ModelShape, layout: str, tp: int) -> list[LayerKV]:
    """Layers of one device."""
    layers = shape.layers if layout == "least" else shape.stored_layers
    return [layer._replace(num_heads=-(-layer.num_heads // tp)) for layer in layers]


def _own_kv_dtype(dtype: str) -> str:
    """Default dtype of KV for a dtype of weights."""
    return dtype if DTYPES[dtype] >= 2 else "bfloat16"


def _sequence_bytes(layers: list[LayerKV], kv_dtype: str, num_tokens: int, block_size: int) -> int:
    """KV bytes of one sequence in whole blocks. A window that starts inside a block keeps all of it."""
    total = 0
    for layer in layers:
        kept = num_tokens
        if layer.window is not None and block_size > 1:
            kept = min(num_tokens, layer.window + block_size - 1)
        elif layer.window is not None:
            kept = min(num_tokens, layer.window)
        total += layer.token_bytes(KV_DTYPES[kv_dtype]) * -(-kept // block_size) * block_size + layer.state_bytes
    return total
