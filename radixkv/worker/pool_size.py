"""Size of a worker's pool: the device's free memory, less the model's needs, at most what sequences can use.

    free after loading
    |-- kept free --|-- activations --|-- workspace --|------------ KV ------------|
     1 - utilisation   of a forward      scratch,        at most --kv-memory, at most max_num_seqs
     of all memory     of max_batch_     sampling         sequences of max_model_len
                       tokens

With lines (see `arena`), at most half of the blocks are set aside for them. If layers have a sliding window, a share of the
blocks may have K and V of these layers at a time (see `window_rows`), so that the pool has more blocks.

Weights, the driver's context and other programs are no longer in the free memory, so they need no estimate. A CPU's memory is
shared with other programs: a pool of no given size takes a quarter of the available memory, and 2 GiB at most.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner import PlanError, check_fit, count_blocks, format_bytes
from radixkv.worker.memory import DeviceMemory, device_memory, host_memory, peak_of
from radixkv.worker.model.cuda.cuda_graphs import STEP_SIZES
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.sampling.score_logits import SLICE_BYTES
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import MAX_TOKENS

__all__ = ["PoolPlan", "PoolWish", "plan_pool"]

CPU_SHARE = 0.25
CPU_MOST_BYTES = 2 << 30
SWAP_BYTES = 4 << 30
"""Default of --host-cache with swapping on; at most a quarter of the host's available memory, as the next."""

CUDA_HOST_BYTES = 16 << 30
"""Default of --host-cache with a block store and a GPU. On a CPU the page cache is that level."""

ROWS_BYTES = 64 << 20
"""Host memory for blocks on their way to and from a block store, beyond --host-cache; at least 32 blocks."""

_LEAST_IN_WINDOWS = 8
"""Branches whose windows have room in any pool."""

_LEAST_ROWS = 32
_SAMPLING_BYTES = 24
"""Per logit: a sorted copy with 64-bit indices, probabilities and their sums."""

_CUDA_FRAGMENTS_BYTES = 256 << 20
"""For fragmentation in torch's allocator, and for the staging buffer of swapped blocks."""

_PROFILED_ON_CPU_BYTES = 4 << 30
"""Weights of a larger model make a forward of `max_batch_tokens` take many seconds on a CPU; activations are then estimated."""


@dataclass(frozen=True, slots=True)
class PoolWish:
    """Pool settings of the user.

    Attributes:
        num_blocks: None: as many as the memory allows.
        block_size: token slots of a block.
        utilisation: share of the device's memory to take, above 0 and at most 1.
        kv_bytes: memory for KV; None: all that is left.
        host_bytes: host memory for saved blocks and blocks that are swapped out; None: a default.
        needs_full_length: whether a pool too small for one sequence of the longest length is an error.
        has_lines: whether some of the blocks are set aside for lines; see `arena`.
        has_store: whether there are host rows for a block store.
        window_share: share of the blocks that have K and V of layers with a sliding window at a time; 1 with lines, a block
            store or swapping.
        num_ranks: ranks that share the model; `kv_bytes` and `host_bytes` are of all together.
    """

    num_blocks: int | None = None
    block_size: int = 16
    utilisation: float = 0.90
    kv_bytes: int | None = None
    host_bytes: int | None = None
    needs_full_length: bool = False
    has_lines: bool = False
    has_store: bool = False
    window_share: float = 1.0
    num_ranks: int = 1

    def check(self, limits: SchedulerLimits) -> None:
        """Reject settings that are out of bounds or in conflict.

        Raises:
            InvalidArgumentError, PlanError: names the setting.
        """
        if not 0 < self.utilisation <= 1:
            raise InvalidArgumentError("utilisation", self.utilisation, "above 0 and at most 1")
        if not 0 < self.window_share <= 1:
            raise InvalidArgumentError("window_share", self.window_share, "above 0 and at most 1")
        for argument, value, least in (
            ("num_blocks", self.num_blocks, 1),
            ("block_size", self.block_size, 1),
            ("kv_memory", self.kv_bytes, 1),
            ("host_cache", self.host_bytes, 0),
            ("tensor_parallel", self.num_ranks, 1),
        ):
            if value is not None and value < least:
                raise InvalidArgumentError(argument, value, f"at least {least}")
        if self.num_blocks is not None and self.kv_bytes is not None:
            raise PlanError("--num-blocks and --kv-memory both set the pool's size: give one of them")
        if self.window_share < 1 and (self.has_store or self.has_lines or limits.preemption == "swap"):
            raise PlanError(
                f"--window-share {self.window_share:g} leaves blocks without a part of their KV, and a block store, "
                "--preemption swap and --layout arena move all of it: leave one of them out"
            )
        if self.host_bytes == 0 and limits.preemption == "swap":
            raise PlanError(
                "--preemption swap moves blocks to --host-cache, which is 0: raise it, or leave one of them out"
            )
        if self.host_bytes and limits.preemption != "swap" and not self.has_store:
            raise PlanError(
                "--host-cache is used with a block store or --preemption swap only: add one, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Size of a pool, with the reason. Sizes in bytes.

    Attributes:
        num_blocks, block_size: of the pool. num_host_blocks: kept in host memory, or swapped out to it.
        num_rows: host rows for blocks on their way to and from a block store.
        num_ranks: ranks of which each takes all this for its share.
        num_lines, line_blocks: spans after the pool's blocks, and their length.
        num_window_blocks: blocks that have K and V of layers with a sliding window at a time; None: all.
        block_bytes: of one block over all layers. windowed_bytes: the part of it in layers with a sliding window.
        weight_bytes: of the model.
        activation_bytes, workspace_bytes, free_bytes: as in the module's picture; None where the number of blocks was given.
        max_model_len: longest sequence served.
        reason: the bound that set the size.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int
    block_bytes: int
    weight_bytes: int
    activation_bytes: int | None
    workspace_bytes: int | None
    free_bytes: int | None
    max_model_len: int
    reason: str
    num_lines: int = 0
    line_blocks: int = 0
    num_rows: int = 0
    num_ranks: int = 1
    num_window_blocks: int | None = None
    windowed_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        """Of the blocks, without lines."""
        num_windowed = self.num_blocks if self.num_window_blocks is None else self.num_window_blocks + 1
        return self.num_blocks * (self.block_bytes - self.windowed_bytes) + num_windowed * self.windowed_bytes

    @property
    def num_full_sequences(self) -> int:
        """Sequences of the longest length that fit at once."""
        return self.num_blocks // -(-self.max_model_len // self.block_size)

    def __str__(self) -> str:
        each = f"each of {self.num_ranks} ranks: " if self.num_ranks > 1 else ""
        parts = [f"{each}weights {format_bytes(self.weight_bytes)}"]
        if self.activation_bytes is not None and self.workspace_bytes is not None and self.free_bytes is not None:
            parts.append(f"activations {format_bytes(self.activation_bytes)}")
            parts.append(f"workspace {format_bytes(self.workspace_bytes)}")
        parts.append(
            f"KV {format_bytes(self.kv_bytes)}: {self.num_blocks:,} blocks of {self.block_size} tokens, "
            f"{self.num_blocks * self.block_size:,} tokens ({self.reason})"
        )
        if self.num_window_blocks is not None:
            parts.append(f"layers with a sliding window in {self.num_window_blocks:,} blocks at a time")
        if self.num_lines:
            num_bytes = format_bytes(self.num_lines * self.line_blocks * self.block_bytes)
            parts.append(f"lines {num_bytes}: {self.num_lines} of {self.line_blocks * self.block_size:,} tokens")
        if self.num_host_blocks:
            parts.append(f"host memory {format_bytes(self.num_host_blocks * self.block_bytes)}")
        if self.num_rows:
            parts.append(f"block store {format_bytes(self.num_rows * self.block_bytes)}")
        return ", ".join(parts)


def plan_pool(
    runner: ModelRunner,
    wish: PoolWish,
    limits: SchedulerLimits,
    memory_of: Callable[[torch.device], DeviceMemory] = device_memory,
) -> PoolPlan:
    """Size the pool of a loaded model that has none yet. Runs a forward to measure activations if `num_blocks` is None.

    Args:
        memory_of: returns a device's memory; called after the forward has been measured.

    Raises:
        InvalidArgumentError: the wish is outside its bounds.
        PlanError: no block fits, or no sequence of the longest length where one must; names a remedy.
    """
    wish.check(limits)
    block_bytes = runner.token_bytes * wish.block_size
    full_blocks = -(-runner.max_model_len // wish.block_size)
    most = limits.max_running * full_blocks
    num_rows = max(_LEAST_ROWS, ROWS_BYTES // block_bytes) if wish.has_store else 0
    num_host_blocks = _num_host_blocks(wish, limits, runner.device, block_bytes, most)
    windows = _choose_windows(runner, wish, limits)
    activation_bytes = workspace_bytes = free_bytes = None
    if wish.num_blocks is not None:
        num_blocks, reason = wish.num_blocks, "as asked for"
    else:
        activation_bytes = _measure_activations(runner, wish.block_size, limits)
        workspace_bytes = _workspace_bytes(runner, limits)
        total_bytes, free_bytes = memory_of(runner.device)
        if runner.device.type == "cpu":  # which its ranks share
            total_bytes, free_bytes = total_bytes // wish.num_ranks, free_bytes // wish.num_ranks
        left = free_bytes - int((1 - wish.utilisation) * total_bytes) - activation_bytes - workspace_bytes
        left -= (num_rows + num_host_blocks) * block_bytes if runner.device.type == "cpu" else 0
        if left < block_bytes:
            raise PlanError(_too_little(runner, wish, total_bytes, free_bytes, block_bytes - left))
        budget, reason = _budget(runner, wish, left, free_bytes)
        num_blocks = _count_blocks(budget, block_bytes, most, windows)
        if num_blocks == most:
            reason = f"all that {limits.max_running} sequences of {runner.max_model_len:,} tokens can use"
    num_lines, line_blocks = _lines(num_blocks, full_blocks, limits) if wish.has_lines else (0, 0)
    num_blocks -= num_lines * line_blocks
    if wish.needs_full_length:
        check_fit(runner.max_model_len, wish.block_size, num_blocks, "raise --kv-memory or --num-blocks")
    return PoolPlan(
        num_blocks=num_blocks,
        block_size=wish.block_size,
        num_host_blocks=num_host_blocks,
        block_bytes=block_bytes,
        weight_bytes=runner.weight_bytes,
        activation_bytes=activation_bytes,
        workspace_bytes=workspace_bytes,
        free_bytes=free_bytes,
        max_model_len=runner.max_model_len,
        reason=reason,
        num_lines=num_lines,
        line_blocks=line_blocks,
        num_rows=num_rows,
        num_ranks=wish.num_ranks,
        num_window_blocks=windows and windows.among(num_blocks),
        windowed_bytes=runner.windowed_token_bytes * wish.block_size,
    )


class _Windows(NamedTuple):
    """Blocks for layers with a sliding window: a `share` of all, of `block_bytes` each. `each`: of one branch, `step`: of a
    prompt's longest part.
    """

    share: float
    block_bytes: int
    each: int
    step: int

    def among(self, num_blocks: int) -> int | None:
        """Their number in a pool of `num_blocks`; None: all of them."""
        number = max(math.ceil(self.share * num_blocks), _LEAST_IN_WINDOWS * self.each + self.step)
        return number if number < num_blocks else None


def _choose_windows(runner: ModelRunner, wish: PoolWish, limits: SchedulerLimits) -> _Windows | None:
    window, share = runner.window, wish.window_share
    if share == 1:
        return None
    if window is None:
        raise PlanError(f"--window-share {share:g}: no layer of this model has a sliding window; leave it out")
    each = -(-(window + MAX_TOKENS) // wish.block_size) + 1
    return _Windows(
        share, runner.windowed_token_bytes * wish.block_size, each, -(-limits.chunk_tokens // wish.block_size)
    )


def _count_blocks(budget: int, block_bytes: int, most: int, windows: _Windows | None) -> int:
    """The most blocks that a budget in bytes holds, with what windows take."""
    if windows is None:
        return count_blocks(budget, block_bytes, most)
    whole = block_bytes - windows.block_bytes
    least, most = budget // block_bytes, min(most, int(budget / max(1, whole)))
    while least < most:  # the largest number that fits
        number = (least + most + 1) // 2
        num_windowed = windows.among(number)
        num_rows = number if num_windowed is None else num_windowed + 1
        fits = number * whole + num_rows * windows.block_bytes <= budget
        least, most = (number, most) if fits else (least, number - 1)
    return least or count_blocks(budget, block_bytes, most)


def _too_little(runner: ModelRunner, wish: PoolWish, total_bytes: int, free_bytes: int, missing_bytes: int) -> str:
    """Error message for no memory left for KV, with a remedy."""
    least = math.ceil((wish.utilisation + missing_bytes / total_bytes) * 100) / 100
    remedy = f"raise it to {least:g} or more" if least <= 1 else "free some memory, or take a smaller model"
    return (
        f"--utilisation {wish.utilisation:g} is {format_bytes(int(wish.utilisation * total_bytes))} of the "
        f"{format_bytes(total_bytes)} of {runner.device}; {format_bytes(total_bytes - free_bytes)} are in use, by this model "
        f"and by others, and {format_bytes(missing_bytes)} are missing for a forward and one block of KV: {remedy}"
    )


def _lines(num_blocks: int, full_blocks: int, limits: SchedulerLimits) -> tuple[int, int]:
    """Number of spans in half of the blocks, and their length: the longest sequence, or the whole half if that is shorter."""
    line_blocks = min(full_blocks, num_blocks // 2)
    if not line_blocks:
        raise PlanError(
            "--layout arena needs two blocks at least, one of them for a line; raise --kv-memory or --num-blocks"
        )
    return min(num_blocks // 2 // line_blocks, limits.max_running), line_blocks


def _budget(runner: ModelRunner, wish: PoolWish, left: int, free_bytes: int) -> tuple[int, str]:
    """Bytes for KV, and the bound that set them."""
    if wish.kv_bytes is not None:
        if wish.kv_bytes // wish.num_ranks > left:
            remaining, free = (format_bytes(max(0, part) * wish.num_ranks) for part in (left, free_bytes))
            raise PlanError(
                f"--kv-memory {format_bytes(wish.kv_bytes)} is more than the {remaining} that are left of {free} free on "
                f"{runner.device}: lower it, or raise --utilisation {wish.utilisation:g}"
            )
        return wish.kv_bytes // wish.num_ranks, "--kv-memory"
    if runner.device.type == "cpu":
        share = min(int(free_bytes * CPU_SHARE), CPU_MOST_BYTES // wish.num_ranks)
        if share < left:
            return share, "a quarter of the memory available, 2 GiB at most; --kv-memory sets another size"
    return left, f"--utilisation {wish.utilisation:g} of {runner.device}"


def _num_host_blocks(wish: PoolWish, limits: SchedulerLimits, device: torch.device, block_bytes: int, most: int) -> int:
    """`most`: blocks that could be swapped out."""
    available, num_bytes = host_memory().free_bytes, wish.host_bytes
    if num_bytes is None:
        default = SWAP_BYTES if limits.preemption == "swap" else 0
        if wish.has_store and device.type == "cuda":
            default = CUDA_HOST_BYTES
        num_bytes = min(default, available // 4)
    elif num_bytes > available:
        raise PlanError(
            f"--host-cache {format_bytes(num_bytes)} is more than the {format_bytes(available)} that the host has available"
        )
    num_blocks = num_bytes // (wish.num_ranks * block_bytes)
    if wish.host_bytes and not num_blocks:
        raise PlanError(
            f"--host-cache {format_bytes(num_bytes)} is less than the {format_bytes(block_bytes)} of a block: raise it"
        )
    return num_blocks if wish.has_store else min(num_blocks, most)


def _workspace_bytes(runner: ModelRunner, limits: SchedulerLimits) -> int:
    """Memory that the profiled forward does not show: sampling, logits of scored prompts, and on a CPU the gathered K and V of
    one longest sequence in one layer.
    """
    sampling = limits.max_running * runner.vocab_size * _SAMPLING_BYTES
    sampling += runner.vocab_size * (limits.max_scored_tokens * (4 + runner.dtype.itemsize) + SLICE_BYTES)
    if runner.device.type == "cuda":
        return sampling + _CUDA_FRAGMENTS_BYTES
    return sampling + runner.gathered_token_bytes * runner.max_model_len


def _measure_activations(runner: ModelRunner, block_size: int, limits: SchedulerLimits) -> int:
    """Peak bytes of a forward: one of prompts with `max_batch_tokens` positions, one of `max_running` decodes; on CUDA next to
    the memory of graphs, and with long contexts. The rows use a pool of one block, named by every entry of their tables, and
    write nothing.
    """
    if runner.device.type == "cpu" and (runner.is_native or runner.weight_bytes > _PROFILED_ON_CPU_BYTES):
        return _estimate_activations(runner, limits)
    runner.allocate_pool(1, block_size)
    try:
        peak = peak_of(lambda: _profile(runner, limits), runner.device)
    finally:
        runner.release_pool()
    return _estimate_activations(runner, limits) if peak is None else peak


def _estimate_activations(runner: ModelRunner, limits: SchedulerLimits) -> int:
    """Rule of thumb: five of the widest intermediates per position, the logits twice per sequence."""
    positions = 5 * runner.widest_output * limits.max_batch_tokens * runner.dtype.itemsize
    return positions + limits.max_running * runner.vocab_size * (4 + runner.dtype.itemsize)


def _profile(runner: ModelRunner, limits: SchedulerLimits) -> None:
    prompts, left = [], limits.max_batch_tokens
    while left:
        length = min(left, runner.max_model_len)
        prompts.append(_row(runner, 0, length))
        left -= length
    if not splits_contexts(runner.device):  # a short context shows the whole peak
        runner.forward(prompts)
        runner.forward([_row(runner, 0, 1)] * limits.max_running)
        return
    longest, length = runner.max_model_len, len(prompts[0].token_ids)
    runner.forward([_row(runner, longest - 1, longest)] * limits.max_running)
    for each in sorted({min(length, STEP_SIZES[-1]), length}):
        runner.forward([_row(runner, longest - each, longest)])
    runner.forward(prompts)  # next to the memory that graphs have taken


def splits_contexts(device: torch.device) -> bool:
    """Whether the device's kernels split long contexts over the chip."""
    return device.type == "cuda"


def _row(runner: ModelRunner, start: int, end: int) -> ForwardRow:
    table = array("i", bytes(4 * -(-end // runner.pool.block_size)))
    return ForwardRow([0] * (end - start), start, table, num_stored=end, num_logits=1)
