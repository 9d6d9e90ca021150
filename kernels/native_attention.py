"""Paged attention on a CPU by the compiled kernel of `native/attention.cpp`: over blocks where they lie, each once per kv head
for all rows that stand on it.

Dtypes: q and caches alike, float32 or bfloat16 (of an even head dimension); sums in fp32. Other calls take the torch path.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.native_plan import plan_native
from radixkv.kernels.spec import AttentionSpec

__all__ = ["NativeCall", "attend_natively", "can_attend_natively", "plan_native_call"]

_FUNCTIONS = {torch.float32: "radixkv_attend_float32", torch.bfloat16: "radixkv_attend_bfloat16"}
_ARRAYS = ("tokens", "positions", "first_keys", "items", "parts", "blocks", "merges", "merge_parts")
_Pointer = ctypes.c_void_p


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "v_head_dim", "block_size")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sinks", _Pointer),
    )


class _Work(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in _ARRAYS),
        ("part_out", _Pointer),
        ("part_lse", _Pointer),
        *((name, ctypes.c_int32) for name in ("num_items", "num_merges", "num_threads")),
    )


def can_attend_natively(q: Tensor) -> bool:
    """Whether the kernel computes in the dtype of q [T, Hq, D]."""
    return q.dtype == torch.float32 or (q.dtype == torch.bfloat16 and q.shape[2] % 2 == 0)


def attend_natively(
    library: ctypes.CDLL,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    spec: AttentionSpec,
    out: Tensor,
) -> None:
    """Fills `out` [T, Hq, Dv]. Token-major caches; arguments as checked by `paged_attention`, and by `can_attend_natively`."""
    if out.numel():
        plan_native_call(library, q, v_cache, batch, spec)(q, k_cache, v_cache, spec.sinks, out)


def plan_native_call(
    library: ctypes.CDLL, q: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec
) -> NativeCall:
    """The call for layers of this kind in this step, made once; of q [T, Hq, D] and v_cache only dtype and shapes count."""
    key = (library, q.dtype, q.shape[1:], v_cache.shape[2:], spec.scale, spec.sliding_window, spec.softcap)
    call: NativeCall | None = batch.plans.get(key)
    if call is None:
        call = batch.plans[key] = NativeCall(library, q, v_cache, batch, spec)
    return call


class NativeCall:
    """What the layers of one kind have in common in a step, in the kernel's own structures.

    Attributes:
        layer, work: addresses of the kernel's structures `Layer` and `Work`, valid as long as this lives.
    """

    def __init__(
        self, library: ctypes.CDLL, q: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec
    ) -> None:
        num_heads, head_dim = q.shape[1:]
        num_kv_heads, v_head_dim = v_cache.shape[2:]
        self._function: Any = library[_FUNCTIONS[q.dtype]]
        self._function.argtypes = (
            _Pointer,
            _Pointer,
            _Pointer,
            ctypes.c_int64,
            ctypes.c_int64,
            _Pointer,
            _Pointer,
            _Pointer,
        )
        self._function.restype = None
        self._layer = _Layer(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            block_size=batch.block_size,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
        )
        plan = plan_native(batch, spec, num_heads // num_kv_heads)
        part_out = batch.scratch.take("part_out", (plan.num_part_rows, num_heads, v_head_dim), q, torch.float32)
        part_lse = batch.scratch.take("part_lse", (plan.num_part_rows, num_heads), q, torch.float32)
        self._kept = (plan, part_out, part_lse)  # what the structure points to
        self._work = _Work(
            **{name: getattr(plan, name).ctypes.data for name in _ARRAYS},
            part_out=part_out.data_ptr(),
            part_lse=part_lse.data_ptr(),
            num_items=len(plan.items),
            num_merges=len(plan.merges),
            num_threads=torch.get_num_threads(),
        )
        self.layer, self.work = ctypes.addressof(self._layer), ctypes.addressof(self._work)

    def __call__(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, sinks: Tensor | None, out: Tensor) -> None:
        if sinks is not None:
            sinks = sinks.float().contiguous()
            self._layer.sinks = sinks.data_ptr()
        q_token, q_head, _ = q.stride()
        self._function(
            self.layer, self.work, q.data_ptr(), q_token, q_head, k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr()
        )
        self._layer.sinks = None
