"""A cache of the transposed layout, as a struct for the compiled kernels (`native/cache.h`)."""

from __future__ import annotations

import ctypes

from radixkv.kernels.kv.kv_cache import KVCache
from radixkv.kernels.kv.kv_format import KVFormat

__all__ = ["NativeKVCache"]

_FORMATS = {None: 0, KVFormat.FP8: 1, KVFormat.INT8: 2, KVFormat.INT4: 3}


class NativeKVCache(ctypes.Structure):
    """Addresses and shape of a cache; valid for the life of the cache."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_scales", "v_scales")),
        *((name, ctypes.c_int64) for name in ("num_kv_heads", "head_dim", "v_head_dim", "block_size", "num_blocks")),
        *((name, ctypes.c_int64) for name in ("num_k_scales", "num_v_scales")),
        *((name, ctypes.c_int32) for name in ("element_size", "format")),
    )

    @classmethod
    def of(cls, cache: KVCache) -> NativeKVCache:
        """The structure for this cache."""
        tensors = (cache.k, cache.v, cache.k_scales, cache.v_scales)
        return cls(
            *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
            *(cache.num_kv_heads, cache.head_dim, cache.v_head_dim, cache.block_size, cache.num_blocks),
            *(0 if tensor is None else tensor.shape[2] for tensor in tensors[2:]),
            cache.k.element_size(),
            _FORMATS[cache.format],
        )
