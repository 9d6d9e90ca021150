"""Blocks rounded at rest: K and V, or latents, of a row of host memory in a KV format of half its bytes or less.

    row       per layer: K, V                                              as the pool's layout has them
    rounded   per run of equal layers: codes of K, of V, scales of K, of V     a cache of that format, whose blocks are layers

They are rotated before they are rounded, as in a pool of that format; see `rotation`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.kernels import KVCache, KVFormat, allocate_kv, allocate_latents, write_kv, write_latents
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.rotation import rotate

__all__ = ["RoundedRows"]


class _Group(NamedTuple):
    """Successive layers of one shape: their K and V, or latents, as in rows, and rounded, each layer a block of one cache."""

    plain: KVCache
    rounded: KVCache


class RoundedRows:
    """Rounds rows of host memory for the caches of one pool. For any thread; O(bytes), about a millisecond for 360 KiB.

    Args:
        caches: of all layers, unrounded. format: of the rounded rows.

    Attributes:
        num_bytes: of a rounded row.
        layout: of the rounded caches; rows of two layouts do not mix.
    """

    def __init__(self, caches: Sequence[KVCache], format: KVFormat) -> None:
        self._caches, self._format = caches, format
        self._local = threading.local()
        groups = self._scratch()
        self.num_bytes = sum(tensor.nbytes for group in groups for tensor in group.rounded.tensors)
        self.layout = groups[0].rounded.layout.value

    def round(self, row: memoryview) -> bytearray:
        """The rounded form of a row."""
        data, rounded = _bytes(row), bytearray(self.num_bytes)
        out = _bytes(rounded)
        for plain, cache in self._scratch():
            data = _copy(data, plain, to_cache=True)
            rows = [tensor.flatten(0, 1) for tensor in plain.token_major()]
            slots = torch.arange(cache.num_slots)
            if cache.is_latent:
                write_latents(rows[0][:, 0], cache, slots)
            else:
                write_kv(rows[0], rows[1], cache, slots)
            for tensor in cache.tensors:
                out[: tensor.nbytes] = _flat(tensor)
                out = out[tensor.nbytes :]
        return rounded

    def unround(self, rounded: memoryview, row: memoryview) -> None:
        """Fill a row from its rounded form."""
        data, stored = _bytes(row), _bytes(rounded)
        for plain, cache in self._scratch():
            for tensor in cache.tensors:
                _flat(tensor).copy_(stored[: tensor.nbytes])
                stored = stored[tensor.nbytes :]
            keys, *values = cache.dequantise(*cache.token_major())
            plain.fill(rotate(keys, cache.key_parts), *map(rotate, values))
            data = _copy(data, plain, to_cache=False)

    def _scratch(self) -> list[_Group]:
        """This thread's."""
        groups: list[_Group] | None = getattr(self._local, "groups", None)
        if groups is None:
            with torch.inference_mode(False):
                groups = self._local.groups = [
                    _group(list(layers), self._format) for _, layers in groupby(self._caches, _shape)
                ]
        return groups


def _shape(cache: KVCache) -> tuple[int, int, int, int, bool, torch.dtype, Layout]:
    sizes = (cache.block_size, cache.num_kv_heads, cache.head_dim, cache.v_head_dim)
    return (*sizes, cache.is_latent, cache.dtype, cache.layout)


def _group(layers: Sequence[KVCache], format: KVFormat) -> _Group:
    block_size, num_kv_heads, head_dim, v_head_dim, is_latent, dtype, layout = _shape(layers[0])
    if is_latent:
        shape = (len(layers), block_size, head_dim, v_head_dim, dtype, "cpu")
        return _Group(allocate_latents(*shape, layout=layout), allocate_latents(*shape, format=format))
    sizes = (len(layers), block_size, num_kv_heads, head_dim, dtype, "cpu")
    plain = allocate_kv(*sizes, v_head_dim=v_head_dim, layout=layout)
    return _Group(plain, allocate_kv(*sizes, v_head_dim=v_head_dim, format=format))


def _bytes(data: memoryview | bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def _flat(tensor: Tensor) -> Tensor:
    """Its bytes."""
    return tensor.view(torch.uint8).view(-1)


def _copy(data: Tensor, plain: KVCache, *, to_cache: bool) -> Tensor:
    """Copy the layers of a group between the bytes of a row and their cache. Returns the bytes after them."""
    num_bytes = sum(tensor.nbytes for tensor in plain.tensors)
    layers = data[:num_bytes].view(plain.num_blocks, -1)
    for tensor in plain.tensors:
        ours = tensor.view(torch.uint8).view(plain.num_blocks, -1)
        theirs, layers = layers[:, : ours.shape[1]], layers[:, ours.shape[1] :]
        (ours if to_cache else theirs).copy_(theirs if to_cache else ours)
    return data[num_bytes:]
