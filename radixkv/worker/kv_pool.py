"""The tensors behind a block pool: K and V of every layer, and the block ops carried out on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, copy_blocks
from radixkv.worker.errors import ModelError
from radixkv.worker.host_blocks import HostBlocks

__all__ = ["KVPool", "LayerShape", "conflict_free_batches", "pool_token_bytes"]


class LayerShape(NamedTuple):
    """What one layer keeps per token. K and V heads may differ in width (latent-attention models)."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """K and V caches of all layers for `num_blocks` blocks of `block_size` token slots, in the kernels' layout.

    Layer `i` reads and writes `k_caches[i]` and `v_caches[i]`; slot = block id * block_size + offset.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        """Allocate the caches, and room in host memory for `num_host_blocks` blocks that are swapped out.

        Raises:
            InvalidArgumentError: `num_blocks` or `block_size` is below 1, or `num_host_blocks` below 0.
            ModelError: the device or the host has not the memory.
        """
        for argument, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidArgumentError(argument, value, "at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = tuple(layers)
        self.dtype = dtype
        self.device = device
        try:
            with torch.inference_mode(False):  # a tensor born in inference mode cannot be written outside it
                self.k_caches = [
                    allocate_kv(num_blocks, block_size, layer.num_kv_heads, layer.key_dim, dtype, device)
                    for layer in layers
                ]
                self.v_caches = [
                    allocate_kv(num_blocks, block_size, layer.num_kv_heads, layer.value_dim, dtype, device)
                    for layer in layers
                ]
        except RuntimeError as error:  # torch's out-of-memory errors, of either device
            raise ModelError(
                f"a pool of {num_blocks} blocks needs {self.size_bytes / 1e6:,.0f} MB, which cannot be had on {device}; "
                "ask for fewer blocks"
            ) from error
        # One copy kernel serves caches with the same number of heads.
        by_heads: dict[int, list[torch.Tensor]] = {}
        for layer, k_cache, v_cache in zip(layers, self.k_caches, self.v_caches, strict=True):
            by_heads.setdefault(layer.num_kv_heads, []).extend((k_cache, v_cache))
        self._copied_together = list(by_heads.values())
        self._host = HostBlocks(num_host_blocks, [*self.k_caches, *self.v_caches])

    @property
    def token_bytes(self) -> int:
        """Bytes that one token's K and V take over all layers."""
        return pool_token_bytes(self.layers, self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.token_bytes * self.block_size * self.num_blocks

    @property
    def num_host_blocks(self) -> int:
        """Slots in host memory for blocks that are swapped out."""
        return self._host.num_slots

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks, all layers' K and V, to host memory: `block_ids[i]` to host slot `slots[i]`.

        Queued on the device's current stream, as `load`, `carry_out` and the forward are; the host waits for none of it.
        A block may be saved to several slots; a slot is written once per call.

        Raises:
            InvalidArgumentError: an id or a slot is outside its bound, they are not equally many, or a slot comes twice;
                nothing was copied.
        """
        self._host.save(block_ids, slots)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy blocks back from host memory: host slot `slots[i]` to `block_ids[i]`, in the order of the stream as `save`.

        Raises:
            InvalidArgumentError: as `save`, of block ids that come twice; nothing was copied.
        """
        self._host.load(slots, block_ids)

    def carry_out(self, ops: Sequence[Copy]) -> None:
        """Copy blocks as `ops` say, with the result of doing one after the other.

        Raises:
            InvalidArgumentError: an op names a block outside the pool or more tokens than a block has; nothing was
                copied.
        """
        for op in ops:
            if not (0 <= op.src < self.num_blocks and 0 <= op.dst < self.num_blocks):
                raise InvalidArgumentError("ops", op, f"copies between blocks below {self.num_blocks}")
            if not 0 <= op.num_tokens <= self.block_size:
                raise InvalidArgumentError("ops", op, f"copies of at most {self.block_size} tokens")
        for batch in conflict_free_batches(ops):
            columns = torch.tensor(batch, dtype=torch.int64).T.contiguous().to(self.device)
            for caches in self._copied_together:
                copy_blocks(caches, *columns)


def pool_token_bytes(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    return sum(layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def conflict_free_batches(ops: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Split `ops` into runs whose copies may happen in any order or at once. O(number of ops).

    Within a run no block is written twice, and none that is written is read. Copies of a block to itself, and of no
    tokens, are dropped.
    """
    batch: list[Copy] = []
    read: set[int] = set()
    written: set[int] = set()
    for op in ops:
        if op.src == op.dst or op.num_tokens == 0:
            continue
        if op.src in written or op.dst in written or op.dst in read:
            yield batch
            batch, read, written = [], set(), set()
        batch.append(op)
        read.add(op.src)
        written.add(op.dst)
    if batch:
        yield batch
