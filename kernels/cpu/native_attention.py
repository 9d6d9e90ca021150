"""Paged attention on a CPU by the compiled kernel of `native/attention.cpp`: over blocks in place, each once per kv head for
all rows that attend to it.

Dtypes: q and the transposed cache alike, float32 or bfloat16; sums in fp32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.kv.kv_cache import KVCache
from radixkv.kernels.kv.native_cache import NativeKVCache
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import WorkLimits, make_work_list

__all__ = ["NATIVE_LIMITS", "NativeCall", "attend_natively", "plan_native_call"]

NATIVE_LIMITS = WorkLimits(item_rows=96, split_keys=1024, sharing_queries=64, min_saved_tokens=200)

_FUNCTIONS = {torch.float32: "radixkv_attend_float32", torch.bfloat16: "radixkv_attend_bfloat16"}
_ARRAYS = ("tokens", "positions", "first_keys", "items", "part_starts", "merge_parts")
_Pointer = ctypes.c_void_p


class _Layer(ctypes.Structure):
    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sinks", _Pointer),
    )


class _Work(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in (*_ARRAYS, "tables", "part_out", "part_lse")),
        *((name, ctypes.c_int32) for name in ("num_items", "num_entries", "num_parts", "num_threads", "table_stride")),
    )


def attend_natively(
    library: ctypes.CDLL, q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    """Fill `out` [T, Hq, Dv]. Arguments as checked by `paged_attention`."""
    if out.numel():
        plan_native_call(library, q.shape[1], cache, batch, spec)(q, cache, spec.sinks, out)


def plan_native_call(
    library: ctypes.CDLL, num_heads: int, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec
) -> NativeCall:
    """The call for layers of this kind in this step, made once, or the previous step's if `batch` continues it.

    Only dtype and shape of the cache matter.
    """
    shape = (cache.dtype, num_heads, cache.num_kv_heads, cache.head_dim, cache.v_head_dim)
    key: Hashable = (library, shape, spec.scale, spec.sliding_window, spec.softcap, spec.sinks is None)
    call: NativeCall | None = batch.plans.get(key)
    if call is None:
        before = batch.before
        call = before.plans.pop(key, None) if before is not None else None
        if before is None or call is None or not call.advance(before, batch, spec):
            call = NativeCall(library, num_heads, cache, batch, spec)
        batch.plans[key] = call
    return call


class NativeCall:
    """State shared by a step's layers of one kind, in the kernel's structures.

    Attributes:
        layer, work: addresses of the kernel's structures `Layer` and `Work`, valid for the life of this object.
    """

    def __init__(
        self, library: ctypes.CDLL, num_heads: int, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec
    ) -> None:
        self._function: Any = library[_FUNCTIONS[cache.dtype]]
        self._function.argtypes = (_Pointer,) * 4 + (ctypes.c_int64,) * 2 + (_Pointer,)
        self._function.restype = None
        self._layer = _Layer(
            num_heads=num_heads,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
        )
        self._list = make_work_list(batch, spec, num_heads // cache.num_kv_heads, NATIVE_LIMITS)
        num_parts = self._list.num_part_rows
        part_out = batch.scratch.take("part_out", (num_parts, num_heads, cache.v_head_dim), cache.k, torch.float32)
        part_lse = batch.scratch.take("part_lse", (num_parts, num_heads), cache.k, torch.float32)
        self._kept = (part_out, part_lse)  # the structure points to them
        self._work = _Work(
            **{name: getattr(self._list, name).ctypes.data for name in _ARRAYS},
            part_out=part_out.data_ptr(),
            part_lse=part_lse.data_ptr(),
            num_items=len(self._list.items),
            num_entries=len(self._list.tokens),
            num_parts=num_parts,
        )
        self._use_tables(batch)
        self.layer, self.work = ctypes.addressof(self._layer), ctypes.addressof(self._work)

    def advance(self, before: AttentionBatch, batch: AttentionBatch, spec: AttentionSpec) -> bool:
        """Advance to the next step, if `batch` continues `before`. Returns whether it does."""
        if not self._list.advance(before, batch, spec):
            return False
        self._use_tables(batch)
        return True

    def _use_tables(self, batch: AttentionBatch) -> None:
        self._tables = batch.host_tables
        self._work.tables = self._tables.ctypes.data
        self._work.table_stride = self._tables.shape[1]
        self._work.num_threads = torch.get_num_threads()

    def __call__(self, q: Tensor, cache: KVCache, sinks: Tensor | None, out: Tensor) -> None:
        if sinks is not None:
            sinks = sinks.float().contiguous()
            self._layer.sinks = sinks.data_ptr()
        q_token, q_head, _ = q.stride()
        native = NativeKVCache.of(cache)
        self._function(self.layer, self.work, ctypes.byref(native), q.data_ptr(), q_token, q_head, out.data_ptr())
        self._layer.sinks = None
