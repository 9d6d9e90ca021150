"""Host memory for blocks: one row holds a block's K and V of every layer.

    device caches of every layer               host rows, one per slot
    [num_blocks, ...] each      -- save: gather -->      [num_slots, bytes of a block]
                                <-- load: scatter --

For caches on a CPU, compiled code copies row by row, or torch's arrays do where there is none.

For caches on a GPU, the rows are pinned and a batch passes through one staging buffer there: one launch for all caches, and one
copy per run of neighbouring slots, all queued on the device's current stream. So a save, a write to the same blocks, and a load
into other blocks need no synchronisation between them, and the host does not wait.
Grid: (blocks, tensors); a program moves one block of one tensor. Elements move as integers, so NaN payloads survive.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_cache import KVCache
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton
from radixkv.kernels.runtime.upload import upload

__all__ = ["HostBlocks"]

_STAGING_BYTES = 64 << 20
"""Most bytes in flight; at least a block."""

_RUN_BYTES = 4096


@triton.jit
def _move_blocks_kernel(
    p_tensors,  # [L] addresses of tensors [num_blocks, width]
    p_columns,  # [L + 1] where each tensor's part of a row begins, and past the last
    p_blocks,  # [N]
    p_rows,  # [N, num_columns] of the type that elements move as
    num_columns,
    RUN: tl.constexpr,
    TO_ROWS: tl.constexpr,
):
    first = tl.load(p_columns + tl.program_id(1))
    width = tl.load(p_columns + tl.program_id(1) + 1) - first
    block = tl.load(p_blocks + tl.program_id(0))
    p_block = tl.load(p_tensors + tl.program_id(1)).to(p_rows.dtype) + block * width
    p_row = p_rows + tl.program_id(0).to(tl.int64) * num_columns + first
    for start in range(0, width, RUN):
        b_element = start + tl.arange(0, RUN)  # [RUN]
        m_element = b_element < width
        if TO_ROWS:
            tl.store(p_row + b_element, tl.load(p_block + b_element, mask=m_element), mask=m_element)
        else:
            tl.store(p_block + b_element, tl.load(p_row + b_element, mask=m_element), mask=m_element)


class _Mover:
    """Moves blocks between contiguous tensors [num_blocks, bytes] and rows of their bytes, in one launch."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        aligned = all(tensor.shape[1] % 4 == 0 and tensor.data_ptr() % 4 == 0 for tensor in tensors)
        self._element = torch.int32 if aligned else torch.uint8
        widths = [tensor.shape[1] // self._element.itemsize for tensor in tensors]
        self._kept = tuple(tensors)  # the addresses point to them
        self._addresses = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=device)
        self._columns = torch.tensor([0, *accumulate(widths)], dtype=torch.int64, device=device)

    def move(self, block_ids: Tensor, rows: Tensor, *, to_rows: bool) -> None:
        """Blocks `block_ids` [N] int64 to or from `rows` [N, bytes of a block], all on the tensors' device."""
        elements = rows.view(self._element)
        _move_blocks_kernel[(block_ids.shape[0], self._addresses.shape[0])](
            self._addresses,
            self._columns,
            block_ids,
            elements,
            elements.stride(0),
            RUN=_RUN_BYTES // self._element.itemsize,
            TO_ROWS=to_rows,
            **PLAIN_OPTIONS,
        )


class _NativeMover:
    """The same for tensors [num_blocks, bytes] and rows on a CPU."""

    class _HostRows(ctypes.Structure):
        """Layout of the struct in `native/block_movement.cpp`."""

        _fields_ = (
            ("rows", ctypes.c_void_p),
            ("row_bytes", ctypes.c_int64),
            ("tensors", ctypes.c_void_p),
            ("widths", ctypes.c_void_p),
            ("num_tensors", ctypes.c_int64),
        )

    def __init__(self, library: ctypes.CDLL, rows: Tensor, tensors: Sequence[Tensor]) -> None:
        self._move = library.radixkv_move_blocks
        self._kept = rows, tensors  # the addresses point to them
        self._addresses = array("Q", [tensor.data_ptr() for tensor in tensors])
        self._widths = array("q", [tensor.shape[1] for tensor in tensors])
        self._host = self._HostRows(
            rows.data_ptr(), rows.shape[1], _address(self._addresses), _address(self._widths), len(tensors)
        )

    def move(self, block_ids: Sequence[int], slots: Sequence[int], *, to_rows: bool) -> None:
        """Blocks `block_ids[i]` to or from rows `slots[i]`. Other threads of Python run meanwhile."""
        ids = array("q", block_ids), array("q", slots)
        blocks, rows = (ctypes.c_void_p(_address(one)) for one in ids)
        self._move(ctypes.byref(self._host), rows, blocks, ctypes.c_int64(len(slots)), ctypes.c_int64(to_rows))


class HostBlocks:
    """`num_slots` rows of host memory for blocks of `caches`.

    Args:
        num_slots: capacity in blocks, at least 0.
        caches: of all layers, with the same number of blocks, on one device.

    Raises:
        InvalidArgumentError: `num_slots` is below 0.
        MemoryError: the host has too little memory, or it cannot be pinned.
    """

    def __init__(self, num_slots: int, caches: Sequence[KVCache]) -> None:
        if num_slots < 0:
            raise InvalidArgumentError("num_host_blocks", num_slots, "at least 0")
        self.num_slots = num_slots
        self._num_blocks = caches[0].num_blocks
        tensors = [tensor for cache in caches for tensor in cache.tensors]
        self._tensors = [tensor.view(self._num_blocks, -1).view(torch.uint8) for tensor in tensors]
        self._device = caches[0].device
        widths = [tensor.shape[1] for tensor in self._tensors]
        self.block_bytes = sum(widths)
        self._batch = max(1, _STAGING_BYTES // self.block_bytes)
        self._widths = widths
        try:
            with torch.inference_mode(False):
                self._rows = torch.empty((num_slots, sum(widths)), dtype=torch.uint8)
        except RuntimeError as error:
            raise MemoryError(f"{self._need()}, which cannot be had; ask for less host memory") from error
        self._staging: Tensor | None = None
        self._mover = _Mover(self._tensors) if self._device.type == "cuda" else None
        library = native_library() if self._device.type == "cpu" else None
        self._native = None if library is None else _NativeMover(library, self._rows, self._tensors)
        self._arrays = self._on_host() if self._device.type == "cpu" else []
        if num_slots and self._device.type == "cuda":
            self._pin()

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_slots * self.block_bytes

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots: `block_ids[i]` to `slots[i]`.

        Raises:
            InvalidArgumentError: an id or a slot is out of bounds, their numbers differ, or a slot is repeated; nothing was
                copied.
        """
        self._check(block_ids, slots, written=("slots", slots))
        if self._native is not None:
            self._native.move(block_ids, slots, to_rows=True)
            return
        if self._mover is None:
            for columns, blocks in self._arrays:
                for block, slot in zip(block_ids, slots, strict=True):
                    columns[slot] = blocks[block]
            return
        for batch, rows in self._batches(block_ids, slots):
            staged = self._staged(len(rows))
            self._mover.move(self._to_device(batch), staged, to_rows=True)
            for at, slot, count in _runs(rows):
                self._rows[slot : slot + count].copy_(staged[at : at + count], non_blocking=True)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy slots to blocks: `slots[i]` to `block_ids[i]`.

        Raises:
            InvalidArgumentError: as `save`, for repeated block ids; nothing was copied.
        """
        self._check(block_ids, slots, written=("block_ids", block_ids))
        if self._native is not None:
            self._native.move(block_ids, slots, to_rows=False)
            return
        if self._mover is None:
            for columns, blocks in self._arrays:
                for block, slot in zip(block_ids, slots, strict=True):
                    blocks[block] = columns[slot]
            return
        for batch, rows in self._batches(block_ids, slots):
            staged = self._staged(len(rows))
            for at, slot, count in _runs(rows):
                staged[at : at + count].copy_(self._rows[slot : slot + count], non_blocking=True)
            self._mover.move(self._to_device(batch), staged, to_rows=False)

    def row(self, slot: int) -> memoryview:
        """The bytes of a slot, to be read and written."""
        row: Any = self._rows[slot].numpy()
        return memoryview(row)

    def fence(self) -> Callable[[], None]:
        """A function, for any thread, that returns once all queued on the device so far is done."""
        if self._device.type == "cpu":
            return _at_once
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch ships it untyped
        event.record(torch.cuda.current_stream(self._device))
        done: Callable[[], None] = event.synchronize
        return done

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

    def _on_host(self) -> list[tuple[Any, Any]]:
        """Each tensor's columns of all rows, and its blocks, as numpy arrays: assigning one row is one memcpy."""
        columns = torch.split(self._rows, self._widths, dim=1)
        return [(part.numpy(), tensor.numpy()) for part, tensor in zip(columns, self._tensors, strict=True)]

    def _to_device(self, ids: Sequence[int]) -> Tensor:
        return upload(ids, self._device, torch.int64)

    def _staged(self, num_rows: int) -> Tensor:
        """Rows on the device. The stream orders all uses, so one buffer is enough."""
        if self._staging is None:
            size = (min(self._batch, self.num_slots), sum(self._widths))
            with torch.inference_mode(False):
                self._staging = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._staging[:num_rows]

    def _pin(self) -> None:
        # torch's pinned allocator rounds up to a power of two, which may double one buffer of gigabytes.
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch ships it untyped
        address = self._rows.data_ptr()
        if runtime.cudaHostRegister(address, self._rows.nbytes, 0) != runtime.cudaError.success:
            raise MemoryError(f"{self._need()}, which cannot be pinned; ask for less host memory")
        weakref.finalize(self, _unpin, address, self._device)

    def _need(self) -> str:
        return f"host memory for {self.num_slots} blocks needs {self.size_bytes / 1e6:,.0f} MB"


def _address(ids: array[int]) -> int:
    return ids.buffer_info()[0]


def _at_once() -> None:
    """A CPU has done it already."""


def _unpin(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # as above
    runtime.cudaHostUnregister(address)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(index in `rows`, first row, count) of each run of consecutive rows."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1:
            yield start, rows[start], at - start
            start = at
