"""Tensors of a block pool: K and V, or latents, of every layer, and the block ops carried out on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.verification import BlockDifference
from radixkv.kernels import HostBlocks, KVCache, allocate_kv, allocate_latents
from radixkv.kernels.kv.block_copy import carry_out, check_copies, copied_together
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat, latent_parts
from radixkv.kernels.runtime.huge_pages import take_soon
from radixkv.worker.errors import ModelError
from radixkv.worker.model.window_rows import WindowRows

__all__ = ["KVPool", "LayerShape", "longest_window", "pool_token_bytes"]

_LARGE_BYTES = 64 << 20
"""A larger pool's memory is taken from the system on a separate thread; a smaller one's, as it is written."""


class LayerShape(NamedTuple):
    """Stored shape of one layer per token: K and V of its kv heads, which may differ in width; or, with `is_latent`, one row of
    `key_dim` whose first `value_dim` elements are the value. `window`: tokens that its queries see; None: all.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    is_latent: bool = False
    window: int | None = None

    @property
    def token_elements(self) -> int:
        """Elements of one token."""
        return self.num_kv_heads * sum(self.row_dims)

    @property
    def row_dims(self) -> tuple[int, ...]:
        """Widths of the rows that a head of a token is rounded as: K and V, or a latent's value and the rest of its key."""
        return latent_parts(self.key_dim, self.value_dim) if self.is_latent else (self.key_dim, self.value_dim)


class KVPool:
    """Caches of all layers for `num_blocks` blocks of `block_size` token slots, in the kernels' layout.

    Layer `i` reads and writes `caches[i]`; slot = block id * block_size + offset. With `windows`, a row takes the place of the
    block id in the caches of layers with a sliding window.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
        kv_format: KVFormat | None = None,
        layout: Layout | None = None,
        num_window_blocks: int | None = None,
    ) -> None:
        """Allocate the caches, with K and V stored in `kv_format`, and host memory for `num_host_blocks` blocks.

        `layout`: of the caches; None: the device's own. `num_window_blocks`: blocks that have K and V of layers with a sliding
        window at a time; None: all. A pool with fewer has no host memory.

        Raises:
            InvalidArgumentError: `num_blocks` or `block_size` is below 1, or `num_host_blocks` below 0, or above with windows.
            ModelError: the device or the host has too little memory.
        """
        for argument, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidArgumentError(argument, value, "at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = tuple(layers)
        self.dtype = dtype
        self.kv_format = kv_format
        self.device = device
        window = longest_window(layers)
        self.windows: WindowRows | None = None
        if num_window_blocks is not None and num_window_blocks < num_blocks and window is not None:
            if num_host_blocks:
                raise InvalidArgumentError("num_host_blocks", num_host_blocks, "0 with fewer blocks for windows")
            self.windows = WindowRows(num_blocks, num_window_blocks, block_size, window)
        sizes = [self._num_rows(layer) for layer in layers]
        try:
            with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside it
                how = (block_size, dtype, device, kv_format, layout)
                self.caches = [_allocate(layer, size, *how) for layer, size in zip(layers, sizes, strict=True)]
        except (RuntimeError, MemoryError) as error:  # of either device
            token_bytes = (pool_token_bytes([layer], dtype, kv_format) for layer in layers)
            needed = sum(size * each for size, each in zip(sizes, token_bytes, strict=True)) * block_size
            raise ModelError(
                f"a pool of {num_blocks} blocks needs {needed / 1e6:,.0f} MB, which cannot be had on {device}; "
                "ask for fewer blocks"
            ) from error
        if device.type == "cpu" and self.size_bytes > _LARGE_BYTES:
            take_soon([tensor for cache in self.caches for tensor in cache.tensors])
        whole, windowed = self._by_rows()
        self._copied_together, self._rows_copied_together = copied_together(whole), copied_together(windowed)
        try:
            self._moved = whole or windowed  # with windows no block is
            self._host = HostBlocks(num_host_blocks, self._moved)
        except MemoryError as error:
            raise ModelError(str(error)) from error

    def _num_rows(self, layer: LayerShape) -> int:
        return self.num_blocks if self.windows is None or layer.window is None else self.windows.num_rows + 1

    def _by_rows(self) -> tuple[list[KVCache], list[KVCache]]:
        """Caches whose rows are blocks, and those of `windows`."""
        caches: tuple[list[KVCache], list[KVCache]] = ([], [])
        for layer, cache in zip(self.layers, self.caches, strict=True):
            caches[self.windows is not None and layer.window is not None].append(cache)
        return caches

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers."""
        return pool_token_bytes(self.layers, self.dtype, self.kv_format)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole pool."""
        return sum(tensor.nbytes for cache in self.caches for tensor in cache.tensors)

    @property
    def copies_at_once(self) -> bool:
        """Whether `load` may be called on any thread, and has copied when it returns."""
        return self.device.type == "cpu"

    @property
    def num_host_blocks(self) -> int:
        """Host slots, of one block each."""
        return self._host.num_slots

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks, all layers' K and V, to host memory: `block_ids[i]` to host slot `slots[i]`.

        Queued on the device's current stream, like `load`, `carry_out` and the forward; the host does not wait. A block may be
        saved to several slots; a slot is written once per call.

        Raises:
            InvalidArgumentError: an id or a slot is out of bounds, their numbers differ, or a slot is repeated; nothing was
                copied.
        """
        self._host.save(block_ids, slots)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy blocks back from host memory: host slot `slots[i]` to `block_ids[i]`, in the order of the stream, as `save`.

        Raises:
            InvalidArgumentError: as `save`, for repeated block ids; nothing was copied.
        """
        self._host.load(slots, block_ids)

    def fence(self) -> Callable[[], None]:
        """A function, for any thread, that returns once all queued on the device so far is done."""
        return self._host.fence()

    def shrink_host(self, num_host_blocks: int) -> None:
        """Keep so many host slots and give the other memory back; the content of the slots is lost."""
        self._host = HostBlocks(num_host_blocks, self._moved)

    def host_rows(self) -> list[memoryview]:
        """Bytes of each host slot."""
        return [self._host.row(slot) for slot in range(self._host.num_slots)]

    def difference(self, block_id: int, other_id: int) -> BlockDifference | None:
        """Difference between the K and V of two blocks, read as the kernels read them, in the layers that have both; None: no
        layer has. Waits for the device.
        """
        blocks = block_id, other_id
        rows = blocks if self.windows is None else self.windows.rows_of(*blocks)
        found = []
        for number, (layer, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            pair = blocks if layer.window is None else rows
            if pair is not None:
                found += [_difference(number, *tensors) for tensors in zip(*map(cache.rows, pair), strict=True)]
        return max(found, key=lambda layer: (layer.relative, layer.largest), default=None)

    def carry_out(self, ops: Sequence[Copy]) -> None:
        """Carry out block copies, with the result of doing one after the other.

        Raises:
            InvalidArgumentError: an op names a block outside the pool or more tokens than a block has; nothing was copied.
        """
        carry_out(self._copied_together, ops)
        if self.windows is not None:
            check_copies(ops, self.num_blocks, self.block_size)
            carry_out(self._rows_copied_together, self.windows.copied(ops))


def longest_window(layers: Sequence[LayerShape]) -> int | None:
    """The longest of the layers' sliding windows; None: no layer has one."""
    return max((layer.window for layer in layers if layer.window is not None), default=None)


def _difference(layer: int, values: Tensor, others: Tensor) -> BlockDifference:
    scale = others.square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    errors = (values - others).abs()
    worst = (float(errors.square().mean().sqrt() / scale), float(errors.max() / scale))
    return BlockDifference(layer, *(error if math.isfinite(error) else math.inf for error in worst))


def pool_token_bytes(layers: Sequence[LayerShape], dtype: torch.dtype, kv_format: KVFormat | None = None) -> int:
    """Bytes that one token takes over all layers, including scales."""
    return sum(_token_bytes(layer, dtype, kv_format) for layer in layers)


def _token_bytes(layer: LayerShape, dtype: torch.dtype, kv_format: KVFormat | None) -> int:
    if kv_format is None:
        return layer.token_elements * dtype.itemsize
    return layer.num_kv_heads * sum(map(kv_format.row_bytes, layer.row_dims))


def _allocate(
    layer: LayerShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    kv_format: KVFormat | None,
    layout: Layout | None,
) -> KVCache:
    if layer.is_latent:
        sizes = (num_blocks, block_size, layer.key_dim, layer.value_dim, dtype, device)
        return allocate_latents(*sizes, format=kv_format, layout=layout)
    sizes = (num_blocks, block_size, layer.num_kv_heads, layer.key_dim, dtype, device)
    return allocate_kv(*sizes, v_head_dim=layer.value_dim, format=kv_format, layout=layout)
