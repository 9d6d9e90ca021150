"""Steps in buffers at fixed addresses: on CUDA each number of tokens is captured once as a graph, and replayed.

    every step, on the host          inputs [5, size]    token ids, positions, slots, slots of windows, tokens with logits; one
                                                         copy
                                     tables              only the entries that changed
                                     work lists          only if the tree did, and with prompts; see `work_list`
    captured once per size           the model's own code over these, the logits into a buffer, every list advanced by a token;
                                     up to 256 tokens once more, without the launches that only prompts and wide trees need

A step of decodes, of prompts, or of both is padded to the next size. A token past the batch has slot -1: it writes nothing, is
in no work list, and its output is not read. The advanced lists are those of the next step if each row decodes one token more;
otherwise they are planned again. Without CUDA the same step runs without a graph. A size that cannot be captured, because the
model's code waits for the device or memory is short, runs without a graph; others keep theirs.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import AttentionBatch, KVCache, write_kv, write_latents
from radixkv.kernels.attention import attend_loaded
from radixkv.kernels.gpu.device_work import (
    ALL_LAUNCHES,
    DECODE_LAUNCHES,
    DeviceWork,
    Launches,
    WorkCapacity,
    advance,
    plan_work,
)
from radixkv.kernels.gpu.glue import HeadEmbedding, embed_heads
from radixkv.kernels.gpu.tree_attention import form_limits, layer_shape
from radixkv.kernels.runtime.upload import upload
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import NO_WORK, WorkList
from radixkv.worker.model.attention import AttentionSite
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.rows import ForwardRow, with_drawn

__all__ = ["MOST_ROWS", "STEP_SIZES", "StaticSteps", "fits_steps", "padded_size"]

MOST_ROWS = 256
"""Sequences of a step, and tokens with logits."""

STEP_SIZES = (1, 2, 4, *range(8, MOST_ROWS + 1, 8), *range(384, 1025, 128))
"""Tokens that steps are padded to. Up to 256, products mostly wait for weights; larger ones take 128 rows or more at a time, so
that padding costs little. Longer steps run without graphs: they compute for longer than their launches take.
"""

_FIRST_CAPACITY = WorkCapacity(entries=STEP_SIZES[-1], items=2048, merge_parts=4096, part_rows=4096)
"""Room for sixteen splits of each row's context, or for prompts that are cut over the whole chip, with some parts per token.
A longer list rebuilds the buffers and all steps.
"""

_LOG = logging.getLogger(__name__)

_Batches = tuple[AttentionBatch, ...]
"""The batch, and in a pool with windows the same rows over those of windows."""

Compute = Callable[[Tensor, Tensor, Tensor, AttentionSite], Tensor]
"""Token ids, positions, indices of the positions with logits, and the attention site -> logits, in any dtype."""


def _index(spec: AttentionSpec, of: Sized) -> int:
    """Of a layer's part: the first, or with a window the last."""
    return 0 if spec.sliding_window is None else len(of) - 1


def padded_size(num_tokens: int) -> int | None:
    """The smallest size for so many tokens; None: there is none."""
    index = bisect_left(STEP_SIZES, num_tokens)
    return STEP_SIZES[index] if num_tokens > 0 and index < len(STEP_SIZES) else None


def fits_steps(rows: Sequence[ForwardRow]) -> bool:
    """Whether there is a size for the rows, and none has an adapter."""
    return (
        len(rows) <= MOST_ROWS
        and padded_size(sum(len(row.token_ids) for row in rows)) is not None
        and sum(row.num_logits for row in rows) <= MOST_ROWS
        and not any(row.adapter for row in rows)
    )


@dataclass(slots=True)
class _Kind:
    """The work of the layers of one window and shape. `work_list`: the planned one, which `is_loaded` or not."""

    spec: AttentionSpec
    group: int
    work: DeviceWork
    part_shape: tuple[int, int]
    work_list: WorkList | None = None
    is_loaded: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """Inputs of a size, the function that runs it, and its output."""

    inputs: Tensor
    logits: Tensor
    run: Callable[[], None]


class _Tables:
    """Block tables of the largest batch, at a fixed address."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self._held = np.zeros(shape, dtype=np.int32)
        with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside it
            self.on_device = torch.zeros(shape, dtype=torch.int32, device=device)

    def load(self, new: npt.NDArray[np.int32]) -> None:
        """Copy the entries that differ from those on the device."""
        held = self._held[: new.shape[0], : new.shape[1]]
        rows, columns = np.nonzero(held != new)
        if len(rows):
            values = new[rows, columns]
            held[rows, columns] = values
            places = rows * self._held.shape[1] + columns
            changed = upload(np.stack([places, values.astype(np.int64)]), self.on_device.device)
            self.on_device.view(-1).index_copy_(0, changed[0], changed[1].to(torch.int32))


class StaticSteps:
    """Steps of up to the largest of `STEP_SIZES` tokens over one pool of head-major caches. For one thread.

    Attributes:
        pool: KV that steps write and read.
        failed_sizes: sizes that could not be captured.
    """

    def __init__(self, pool: KVPool, compute: Compute, *, vocab_size: int, max_model_len: int) -> None:
        """Allocate the block tables of the largest batch."""
        self.pool = pool
        self._compute = compute
        self._vocab_size = vocab_size
        self._captures = pool.device.type == "cuda"
        self.failed_sizes: set[int] = set()
        self._steps: dict[tuple[int, Launches], _Step] = {}
        self._launches = ALL_LAUNCHES  # of the step being made
        self._graph_memory: Any = None  # a handle; torch does not export its type
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._before: _Batches | None = None  # of the loaded lists, which were advanced by a token
        shape = MOST_ROWS, -(-max_model_len // pool.block_size)
        self._tables = [_Tables(shape, pool.device) for _ in range(1 if pool.windows is None else 2)]
        with torch.inference_mode(False):
            self._logits = torch.empty((0, vocab_size), dtype=torch.float32, device=pool.device)

    def prepare(self, num_tokens: int) -> None:
        """Make the steps of all sizes up to that of `num_tokens` now, not at first use."""
        started_s = time.monotonic()
        largest = padded_size(num_tokens) or STEP_SIZES[-1]
        sizes = [size for size in reversed(STEP_SIZES) if size <= largest]  # the largest's memory suffices
        num_made = sum(self._take(size, ALL_LAUNCHES) is not None for size in sizes)
        if all(kind.work.limits.narrow_entries for kind in self._kinds.values()):
            for size in sizes:
                if size <= MOST_ROWS:
                    self._take(size, DECODE_LAUNCHES)
        if self._captures:
            seconds = time.monotonic() - started_s
            _LOG.info("captured CUDA graphs for %d of %d step sizes in %.1f s", num_made, len(sizes), seconds)

    def run(
        self,
        inputs: npt.NDArray[np.int64],
        batch: AttentionBatch,
        kept: Sequence[int],
        drawn_ids: Tensor | None = None,
        windowed: tuple[AttentionBatch, npt.NDArray[np.int64]] | None = None,
    ) -> Tensor | None:
        """Compute one step, without waiting for the device except for the first of a size.

        Args:
            inputs: [3, T] of the tokens of rows that `fits_steps` holds: see `step_inputs`.
            batch: of the same rows.
            kept: indices of the tokens with logits.
            drawn_ids: token ids on the device, which `inputs[0]` may name; see `with_drawn`.
            windowed: the rows over the rows of the pool's windows, and [T] slots there, if it has them.

        Returns:
            float32 [len(kept), vocab_size], until the next call overwrites it; None: this size cannot be captured, and nothing
            was computed.

        Raises:
            InvalidArgumentError: a block id is outside the pool.
        """
        num_tokens = inputs.shape[1]
        size = padded_size(num_tokens)
        assert size is not None, "the caller asks for steps that there are"
        if batch.highest_block >= self.pool.num_blocks:
            raise InvalidArgumentError("batch.highest_block", batch.highest_block, f"below {self.pool.num_blocks}")
        if not self._kinds:
            self._take(size, ALL_LAUNCHES)  # its layers are of some kinds
        batches = (batch, windowed[0]) if windowed is not None else (batch,)
        if self._plan_work(batches):  # the graphs refer to outgrown buffers
            self._forget_steps()
        self._load_lists()
        step = self._take(size, self._needed_launches(size))
        if step is None:
            return None
        padded = np.zeros((5, size), dtype=np.int64)
        padded[2:4] = -1
        padded[:3, :num_tokens] = inputs
        padded[3, :num_tokens] = inputs[2] if windowed is None else windowed[1]
        padded[4, : len(kept)] = kept
        step.inputs.copy_(upload(padded, self.pool.device), non_blocking=True)
        if drawn_ids is not None:
            step.inputs[0].copy_(with_drawn(step.inputs[0], drawn_ids))
        for tables, each in zip(self._tables, batches, strict=True):
            tables.load(each.host_tables)
        self._load_lists()  # a step that was made just now has unloaded them
        step.run()
        self._before = batches
        return step.logits[: len(kept)]

    def attend(self, query: Tensor, cache: KVCache, spec: AttentionSpec) -> Tensor:
        """Attention of a layer over the loaded lists; called by the steps' sites."""
        shape = layer_shape(query, cache.k, cache.v_head_dim, is_latent=cache.is_latent)
        forms = form_limits(shape, query.device)
        part_shape = query.shape[1], cache.v_head_dim
        key = shape.group, forms, part_shape, spec.sliding_window
        kind = self._kinds.get(key)
        with torch.inference_mode(False):
            if kind is None:
                work = DeviceWork(_FIRST_CAPACITY, forms, *part_shape, query.device)
                self._kinds[key] = kind = _Kind(spec, shape.group, work, part_shape)
            if part_shape not in self._outputs:
                rows = STEP_SIZES[-1], *part_shape
                self._outputs[part_shape] = torch.zeros(rows, dtype=query.dtype, device=query.device)
        out = self._outputs[part_shape][: query.shape[0]]
        tables = self._tables[_index(spec, self._tables)].on_device
        return attend_loaded(query, cache, tables, kind.work, spec, out, self._launches)

    # -- inputs of a step

    def _plan_work(self, batches: _Batches) -> bool:
        """Plan every kind's list, unless the one on the device advanced to this batch. Returns whether buffers were outgrown
        and replaced.
        """
        before, self._before = self._before, None
        has_grown = False
        for kind in self._kinds.values():
            index = _index(kind.spec, batches)
            batch = batches[index]
            known = kind.work_list if before is not None and kind.is_loaded else None
            if known is not None and before is not None and known.advance(before[index], batch, kind.spec):
                continue
            kind.work_list = plan_work(batch, kind.spec, kind.group, kind.work.limits, kind.part_shape[0])
            kind.is_loaded = False
            needed = WorkCapacity.of(kind.work_list)
            if not kind.work.capacity.holds(needed):
                has_grown = True
                room = kind.work.capacity.union(needed.with_spare().with_spare().with_spare())
                kind.work = DeviceWork(room, kind.work.limits, *kind.part_shape, self.pool.device)
        return has_grown

    def _needed_launches(self, size: int) -> Launches:
        """Of the loaded lists; fewer than all for small sizes alone."""
        needed = [kind.work.launches for kind in self._kinds.values()]
        needs_all = size > MOST_ROWS or any(each.wide or each.merge for each in needed)
        return ALL_LAUNCHES if needs_all else DECODE_LAUNCHES

    def _load_lists(self) -> None:
        for kind in self._kinds.values():
            if not kind.is_loaded:
                assert kind.work_list is not None
                kind.work.load(kind.work_list)
                kind.is_loaded = True

    # -- making steps

    def _take(self, size: int, launches: Launches) -> _Step | None:
        """The step of a size, made at its first use; None: it cannot be made."""
        if size in self.failed_sizes:
            return None
        key = size, launches
        if key not in self._steps:
            self._launches = launches
            try:
                self._steps[key] = self._make(size)
            except Exception as error:  # torch's, Triton's or the driver's: unsupported operations, too little memory
                if not self._captures:
                    raise
                self.failed_sizes.add(size)
                if not self._steps:
                    self._graph_memory = None  # torch rejects a handle without graphs
                    self._kinds.clear()  # it may have failed before all were met
                torch.cuda.empty_cache()
                _LOG.warning("steps of %d tokens run without a CUDA graph: %s", size, error)
                return None
        return self._steps[key]

    def _make(self, size: int) -> _Step:
        """Run the body once over empty lists, which compiles and allocates, and then capture it."""
        num_kept = min(size, MOST_ROWS)
        with torch.inference_mode(False):
            inputs = torch.zeros((5, size), dtype=torch.int64, device=self.pool.device)
            if self._logits.shape[0] < num_kept:
                self._logits = torch.empty((num_kept, self._vocab_size), dtype=torch.float32, device=self.pool.device)
        logits, kept = self._logits[:num_kept], inputs[4, :num_kept]
        inputs[2:4] = -1
        self._unload()

        def body() -> None:
            with torch.inference_mode():
                logits.copy_(self._compute(inputs[0], inputs[1], kept, _Site(self, inputs[2:4])))
                for kind in self._kinds.values():
                    advance(kind.work, kind.spec)

        body()
        if not self._captures:
            return _Step(inputs, logits, body)
        return _Step(inputs, logits, self._capture(body).replay)

    def _unload(self) -> None:
        for kind in self._kinds.values():
            kind.work.load(NO_WORK)
            kind.is_loaded = False

    def _capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if self._graph_memory is None:
            self._graph_memory = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self.pool.device)
        stream = torch.cuda.current_stream(self.pool.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device meanwhile: only this thread's work must be capturable.
            with torch.cuda.graph(graph, pool=self._graph_memory, capture_error_mode="thread_local"):
                body()
        finally:
            torch.cuda.set_stream(stream)  # a failed capture leaves its own stream
        return graph

    def _forget_steps(self) -> None:
        if self._captures:
            torch.cuda.synchronize(self.pool.device)  # a running graph must not be destroyed
        self._steps.clear()
        self._graph_memory = None


class _Site:
    """Receiver of the layers' calls of a static step. `slots` [2, size] int64, of layers without a window and with one."""

    def __init__(self, steps: StaticSteps, slots: Tensor) -> None:
        self._steps = steps
        self._slots = slots

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        cache = self._steps.pool.caches[layer]
        write_kv(key, value, cache, self._slots_of(spec))
        return self._steps.attend(query, cache, spec)

    def attend_unembedded(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: HeadEmbedding, spec: AttentionSpec
    ) -> Tensor:
        cache = self._steps.pool.caches[layer]
        return self._steps.attend(embed_heads(query, key, value, how, cache, self._slots_of(spec)), cache, spec)

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        cache = self._steps.pool.caches[layer]
        assert cache.v_head_dim == value_dim
        write_latents(latents, cache, self._slots_of(spec))
        return self._steps.attend(query, cache, spec)

    def _slots_of(self, spec: AttentionSpec) -> Tensor:
        return self._slots[_index(spec, self._slots)]
