"""The worker half: KV blocks copied between an engine's paged caches and rows of host memory.

A *host row* is one block of the host pool: `block_size` tokens of every layer that this worker holds. Copies run on the current
stream, in the order of the calls; rows are pinned where CUDA is.

Each save gives its row a *stamp*, a number that no other save has, and a load names the stamp that it expects. A row that
another save has overwritten, or whose save failed, is never read in place of the KV that a request needs.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NO_STAMP", "BlockMove", "HostRows"]

logger = logging.getLogger(__name__)

NO_STAMP = 0
"""No save has it: a load with it fails."""


class BlockMove(NamedTuple):
    """A copy between host row `row` and the engine's block `block`."""

    row: int
    block: int
    stamp: int


class HostRows:
    """Host memory for `num_rows` blocks of every layer.

    Args:
        layers: the engine's cache of each layer by name. The block axis is the first, or the second of a tensor of five
            axes that keeps K and V apart in the first: [2, blocks, ...]. A block may be several of the tensor's, in a row.
        num_blocks: how many blocks the engine has; block ids are below it.
        num_rows: how many rows to allocate.

    Raises:
        ValueError: a cache whose block axis cannot be found.
    """

    def __init__(self, layers: Mapping[str, Tensor], num_blocks: int, num_rows: int) -> None:
        views: dict[tuple[object, ...], Tensor] = {}
        for name, cache in layers.items():
            view = _blocks_first(name, cache, num_blocks)
            views[view.data_ptr(), view.shape, view.stride()] = view  # layers that share a cache are copied once
        self._pairs = [(view, _allocate(view, num_blocks, num_rows)) for view in views.values()]
        self._num_blocks = num_blocks
        self._copied: Any = None  # CUDA event of the latest copies, should the engine change its current stream
        self._stamps = array("q", [NO_STAMP]) * num_rows

    @property
    def size_bytes(self) -> int:
        """Host memory of all rows."""
        return sum(host.numel() * host.element_size() for _, host in self._pairs)

    def load(self, moves: Sequence[BlockMove]) -> set[int]:
        """Copy rows to blocks; returns the blocks that were not loaded, since their row does not have the stamp."""
        valid = [move for move in moves if move.stamp != NO_STAMP and self._stamps[move.row] == move.stamp]
        failed = {move.block for move in moves} - {move.block for move in valid}
        try:
            self._copy_all(valid, to_host=False)
        except RuntimeError:
            logger.exception("KV of %d blocks was not loaded from host memory", len(valid))
            failed.update(move.block for move in valid)
        return failed

    def save(self, moves: Sequence[BlockMove]) -> bool:
        """Copy blocks to rows and stamp these; returns whether all were saved. A row that was not has no stamp."""
        for move in moves:
            self._stamps[move.row] = NO_STAMP
        try:
            self._copy_all(moves, to_host=True)
        except RuntimeError:
            logger.exception("KV of %d blocks was not saved to host memory", len(moves))
            return False
        for move in moves:
            self._stamps[move.row] = move.stamp
        return True

    def _copy_all(self, moves: Sequence[BlockMove], *, to_host: bool) -> None:
        import torch

        if not moves:
            return
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        for cache, host in self._pairs:
            self._copy(cache, host, sorted(moves), to_host=to_host)
        if self._pairs and self._pairs[0][0].is_cuda:
            self._copied = torch.cuda.current_stream().record_event(self._copied)

    def _copy(self, cache: Tensor, host: Tensor, moves: Sequence[BlockMove], *, to_host: bool) -> None:
        """One gather or scatter on the device, and one transfer per run of neighbouring rows."""
        import torch

        per_block = len(cache) // self._num_blocks
        blocks = torch.tensor([move.block for move in moves], device=cache.device)
        indices = (blocks[:, None] * per_block + torch.arange(per_block, device=cache.device)).flatten()
        if to_host:
            staged = cache.index_select(0, indices)
        else:
            staged = torch.empty((len(indices), *cache.shape[1:]), dtype=cache.dtype, device=cache.device)
        for start, end in _runs([move.row for move in moves]):
            rows = host[moves[start].row * per_block : (moves[end - 1].row + 1) * per_block]
            part = staged[start * per_block : end * per_block]
            if to_host:
                rows.copy_(part, non_blocking=True)
            else:
                part.copy_(rows, non_blocking=True)
        if not to_host:
            cache.index_copy_(0, indices, staged)


def _blocks_first(name: str, cache: Tensor, num_blocks: int) -> Tensor:
    """A view of a layer's cache with its block axis first, in a dtype that every device can gather and scatter."""
    import torch

    if cache.element_size() == 1 and cache.dtype != torch.uint8:
        cache = cache.view(torch.uint8)
    if cache.ndim == 5 and cache.shape[0] == 2 and cache.shape[1] % num_blocks == 0:
        return cache.movedim(1, 0)
    if cache.ndim >= 2 and cache.shape[0] and cache.shape[0] % num_blocks == 0:
        return cache
    raise ValueError(
        f"kv_caches[{name!r}]: shape {tuple(cache.shape)} has no axis of {num_blocks} blocks; must be [blocks, ...] or "
        "[2, blocks, block_size, heads, dim]"
    )


def _allocate(view: Tensor, num_blocks: int, num_rows: int) -> Tensor:
    """Zeroed rows for a layer. torch's pinned allocator would round them up to a power of two, so they are pinned here."""
    import torch

    host = torch.zeros((num_rows * (len(view) // num_blocks), *view.shape[1:]), dtype=view.dtype)
    if view.is_cuda:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call] # torch's
        status = int(runtime.cudaHostRegister(host.data_ptr(), host.numel() * host.element_size(), 0))
        if status:
            logger.warning("host rows are not pinned (CUDA error %d): copies are slower and block the engine", status)
    return host


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[start, end) of each run of consecutive numbers in ascending `rows`."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index] != rows[index - 1] + 1:
            yield start, index
            start = index
