"""Room in host memory for whole blocks that were swapped out: every layer's K and V of a block in one row.

    device caches, one per layer for K and one for V          host rows, one per slot
    [num_blocks, ...] x 2 x layers   -- save: gather -->      [num_slots, elements of a block]
                                     <-- load: scatter --

Where the caches lie on a device, the rows are pinned and a batch passes through one staging buffer there: a gather per
cache and one copy per run of neighbouring slots, all queued on the device's current stream. So whoever queues a save,
then writes the blocks, then loads them elsewhere, needs no synchronisation, and the host waits for none of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.errors import ModelError

__all__ = ["HostBlocks"]

_STAGING_BYTES = 64 << 20
"""Most bytes on their way at once; at least a block."""


class HostBlocks:
    """`num_slots` rows of host memory for blocks of `caches`.

    Args:
        num_slots: blocks that fit, at least 0.
        caches: every layer's K and V, each contiguous with the block id first, of one dtype and device.

    Raises:
        InvalidArgumentError: `num_slots` is below 0.
        ModelError: the host has not the memory, or it cannot be pinned.
    """

    def __init__(self, num_slots: int, caches: Sequence[Tensor]) -> None:
        if num_slots < 0:
            raise InvalidArgumentError("num_host_blocks", num_slots, "at least 0")
        self.num_slots = num_slots
        self._num_blocks = caches[0].shape[0]
        self._caches = [cache.view(self._num_blocks, -1) for cache in caches]
        self._dtype, self._device = caches[0].dtype, caches[0].device
        widths = [cache.shape[1] for cache in self._caches]
        self.block_bytes = sum(widths) * self._dtype.itemsize
        self._batch = max(1, _STAGING_BYTES // self.block_bytes)
        self._widths = widths
        try:
            with torch.inference_mode(False):
                self._rows = torch.empty((num_slots, sum(widths)), dtype=self._dtype)
        except RuntimeError as error:
            raise ModelError(f"{self._need()}, which cannot be had; ask for less swap space") from error
        self._staging: Tensor | None = None
        if num_slots and self._device.type == "cuda":
            self._pin()

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_slots * self.block_bytes

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots: `block_ids[i]` to `slots[i]`.

        Raises:
            InvalidArgumentError: as `KVPool.save`; nothing was copied.
        """
        self._check(block_ids, slots, written=("slots", slots))
        for blocks, rows in self._batches(block_ids, slots):
            ids = self._to_device(blocks)
            if self._device.type == "cpu":
                for cache, columns in zip(self._caches, self._columns(self._rows), strict=True):
                    columns.index_copy_(0, torch.tensor(rows), cache.index_select(0, ids))
                continue
            staged = self._staged(len(rows))
            for cache, columns in zip(self._caches, self._columns(staged), strict=True):
                columns.copy_(cache.index_select(0, ids))
            for at, slot, count in _runs(rows):
                self._rows[slot : slot + count].copy_(staged[at : at + count], non_blocking=True)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy slots to blocks: `slots[i]` to `block_ids[i]`.

        Raises:
            InvalidArgumentError: as `KVPool.load`; nothing was copied.
        """
        self._check(block_ids, slots, written=("block_ids", block_ids))
        for blocks, rows in self._batches(block_ids, slots):
            ids = self._to_device(blocks)
            if self._device.type == "cpu":
                staged = self._rows.index_select(0, torch.tensor(rows))
            else:
                staged = self._staged(len(rows))
                for at, slot, count in _runs(rows):
                    staged[at : at + count].copy_(self._rows[slot : slot + count], non_blocking=True)
            for cache, columns in zip(self._caches, self._columns(staged), strict=True):
                cache.index_copy_(0, ids, columns)

    def _check(self, block_ids: Sequence[int], slots: Sequence[int], written: tuple[str, Sequence[int]]) -> None:
        if len(block_ids) != len(slots):
            raise InvalidArgumentError("slots", len(slots), f"as many as block_ids, {len(block_ids)}")
        for name, ids, bound in (("block_ids", block_ids, self._num_blocks), ("slots", slots, self.num_slots)):
            for value in ids:
                if not 0 <= value < bound:
                    raise InvalidArgumentError(name, value, f"at least 0 and below {bound}")
        name, ids = written
        if len(set(ids)) != len(ids):
            raise InvalidArgumentError(name, list(ids), "distinct where it is written to")

    def _batches(self, block_ids: Sequence[int], slots: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        for start in range(0, len(slots), self._batch):
            yield block_ids[start : start + self._batch], slots[start : start + self._batch]

    def _columns(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self._widths, dim=1)

    def _to_device(self, ids: Sequence[int]) -> Tensor:
        is_cuda = self._device.type == "cuda"  # from pageable memory the copy would wait for the stream
        return torch.tensor(ids, dtype=torch.int64, pin_memory=is_cuda).to(self._device, non_blocking=True)

    def _staged(self, num_rows: int) -> Tensor:
        """Rows on the device. Every use is ordered by the stream, so one buffer does."""
        if self._staging is None:
            size = (min(self._batch, self.num_slots), sum(self._widths))
            with torch.inference_mode(False):
                self._staging = torch.empty(size, dtype=self._dtype, device=self._device)
        return self._staging[:num_rows]

    def _pin(self) -> None:
        # torch's own pinned allocator rounds up to a power of two, which for one buffer of gigabytes may double it.
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch ships it untyped
        address = self._rows.data_ptr()
        if runtime.cudaHostRegister(address, self._rows.nbytes, 0) != runtime.cudaError.success:
            raise ModelError(f"{self._need()}, which cannot be pinned; ask for less swap space")
        weakref.finalize(self, _unpin, address, self._device)

    def _need(self) -> str:
        return f"swap space for {self.num_slots} blocks needs {self.size_bytes / 1e6:,.0f} MB of host memory"


def _unpin(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # as above
    runtime.cudaHostUnregister(address)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(position in `rows`, first row, count) of each run of rows that follow each other."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1:
            yield start, rows[start], at - start
            start = at
