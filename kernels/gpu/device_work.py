"""A work list on the device, in buffers at fixed addresses: a graph captured over them replays any list loaded later.

    one int32 buffer     counts | tokens | positions | first keys | items, narrow before wide | narrow parts of each entry |
                         its first part to merge | parts to merge
    parts, lse           partial results of the items' rows for the merge, fp32; shared by all layers of a step
    arrivals             narrow parts of an entry and kv head that a launch has written so far; 0 between launches

Loading fills one pinned buffer on the host and copies it in one piece, in the order of the current stream.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.gpu.launch import num_processors
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.work_list import SplitRule, WorkLimits, WorkList, make_work_list

__all__ = [
    "ALL_LAUNCHES",
    "DECODE_LAUNCHES",
    "UNITS_PER_PROCESSOR",
    "DeviceWork",
    "FormLimits",
    "Launches",
    "WorkCapacity",
    "advance",
    "plan_work",
    "take_device_work",
    "work_limits",
]

SPLIT_KEYS = 1024
"""Items of steady work end at absolute multiples of it; otherwise a step's split length depends on the batch and the chip."""

UNITS_PER_PROCESSOR = (4, 1)
"""Programs' shares of work that a step is cut into, of the narrow and of the wide form: about as many as run at once. In more
rounds there would be more parts to merge, and programs without work in the last one."""

LEAST_SPLITS = (128, 256)
"""A wide item of 64 rows writes parts of as many bytes as 128 keys have."""

MOST_SPLIT = 2048

_SHARING_QUERIES = 64
_MIN_SAVED_TOKENS = 64
"""A part is written and read again: per row as many bytes as some tens of keys and values."""

_SPARE = 1.25
"""Spare factor of buffers, so that the next steps fit them."""

_ALIGNMENT = 4
"""Sections start at multiples of 16 bytes."""

_ADVANCE_ENTRIES = 256


class FormLimits(NamedTuple):
    """Items of up to `narrow_entries`, which may be 0, take the kernel's narrow form, up to `wide_entries` its wide form.

    With `is_steady` a row is summed alike in every batch: there is one form, and parts are merged one by one. `wide_chunks`: a
    kv head's query heads take so many wide items.
    """

    narrow_entries: int
    wide_entries: int
    is_steady: bool = False
    wide_chunks: int = 1


class Launches(NamedTuple):
    """Launches of a layer's attention: of the item kernel's forms, and of a merge for entries that have parts, but no narrow
    one, and so are not merged by the narrow form.
    """

    narrow: bool = True
    wide: bool = True
    merge: bool = True


ALL_LAUNCHES = Launches()
"""For every list."""

DECODE_LAUNCHES = Launches(wide=False, merge=False)
"""For branches that share little."""


def _narrow_parts(work_list: WorkList, is_wide: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """[E] parts of each entry that narrow items write."""
    items = work_list.items[~is_wide & (work_list.items[:, 5] >= 0)]
    steps = np.zeros(len(work_list.tokens) + 1, dtype=np.int64)
    np.add.at(steps, items[:, 0], 1)
    np.add.at(steps, items[:, 1], -1)
    return np.cumsum(steps)[:-1]


@dataclass(frozen=True, slots=True)
class WorkCapacity:
    """Capacity of a `DeviceWork` for each array of a work list."""

    entries: int
    items: int
    merge_parts: int
    part_rows: int

    @classmethod
    def of(cls, work_list: WorkList) -> WorkCapacity:
        """Capacity for this list."""
        return cls(
            entries=len(work_list.tokens),
            items=len(work_list.items),
            merge_parts=len(work_list.merge_parts),
            part_rows=work_list.num_part_rows,
        )

    def holds(self, other: WorkCapacity) -> bool:
        """Whether all of `other` fits."""
        return all(room >= size for room, size in zip(astuple(self), astuple(other), strict=True))

    def with_spare(self) -> WorkCapacity:
        """A larger capacity, by the spare factor."""
        return WorkCapacity(*(int(size * _SPARE) for size in astuple(self)))

    def union(self, other: WorkCapacity) -> WorkCapacity:
        """Capacity for either."""
        return WorkCapacity(*map(max, astuple(self), astuple(other)))


class DeviceWork:
    """Buffers for work lists of layers with `num_heads` query heads and values of `v_head_dim` columns.

    Part memory takes 4 * part_rows * num_heads * (v_head_dim + 1) bytes. For use by one thread and one stream.

    Attributes:
        launches: that the loaded list needs.
    """

    NUM_COUNTS = 4
    """`counts`: first narrow item, first wide item, past the last item, entries."""

    launches: Launches

    def __init__(
        self,
        capacity: WorkCapacity,
        limits: FormLimits,
        num_heads: int,
        v_head_dim: int,
        device: torch.device | str,
    ) -> None:
        """Allocate the buffers; the work list is empty.

        Raises:
            InvalidArgumentError: a negative capacity.
        """
        for name, size in asdict(capacity).items():
            if size < 0:
                raise InvalidArgumentError(f"capacity.{name}", size, "at least 0")
        self.capacity = capacity
        self.limits = limits
        shapes = {
            "counts": (self.NUM_COUNTS,),
            "tokens": (capacity.entries,),
            "positions": (capacity.entries,),
            "first_keys": (capacity.entries,),
            "items": (capacity.items, 6),
            "narrow_parts": (capacity.entries,),
            "part_starts": (capacity.entries + 1,),
            "merge_parts": (capacity.merge_parts,),
        }
        starts, num_ints = {}, 0
        for name, shape in shapes.items():
            starts[name] = num_ints
            num_ints += -(-int(np.prod(shape)) // _ALIGNMENT) * _ALIGNMENT
        self._device_buffer = torch.zeros(num_ints, dtype=torch.int32, device=device)
        on_gpu = self._device_buffer.device.type != "cpu"
        self._host_buffer = torch.zeros(num_ints, dtype=torch.int32, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]  # torch has no type for it

        def view(buffer: Tensor, name: str) -> Tensor:
            return buffer[starts[name] : starts[name] + int(np.prod(shapes[name]))].view(shapes[name])

        self._host = {name: view(self._host_buffer, name).numpy() for name in shapes}
        self.counts = view(self._device_buffer, "counts")
        self.num_entries = self.counts[3:]
        self.tokens = view(self._device_buffer, "tokens")
        self.positions = view(self._device_buffer, "positions")
        self.first_keys = view(self._device_buffer, "first_keys")
        self.items = view(self._device_buffer, "items")
        self.narrow_parts = view(self._device_buffer, "narrow_parts")
        self.part_starts = view(self._device_buffer, "part_starts")
        self.merge_parts = view(self._device_buffer, "merge_parts")
        self.parts = torch.empty((capacity.part_rows, num_heads, v_head_dim), dtype=torch.float32, device=device)
        self.lse = torch.empty((capacity.part_rows, num_heads), dtype=torch.float32, device=device)
        self.arrivals = torch.zeros((capacity.entries, num_heads), dtype=torch.int32, device=device)
        self.launches = Launches(narrow=False, wide=False, merge=False)

    @property
    def device(self) -> torch.device:
        """Device of the buffers."""
        return self._device_buffer.device

    def load(self, work_list: WorkList) -> None:
        """Replace the list for later launches and replays of the current stream. O(arrays), one copy.

        Raises:
            InvalidArgumentError: an array exceeds its buffer, or an item has more entries than the wide form holds.
        """
        needed = asdict(WorkCapacity.of(work_list))
        for name, room in asdict(self.capacity).items():
            if needed[name] > room:
                raise InvalidArgumentError(f"work_list.{name}", needed[name], f"at most {room}, the capacity")
        items = work_list.items
        sizes = items[:, 1] - items[:, 0]
        if len(sizes) and sizes.max() > self.limits.wide_entries:
            limit = f"at most {self.limits.wide_entries}, what the wide form holds"
            raise InvalidArgumentError("work_list.items' entries", int(sizes.max()), limit)
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has read the host buffer
        is_wide = sizes > self.limits.narrow_entries
        num_wide = int(is_wide.sum())
        narrow_parts = _narrow_parts(work_list, is_wide)
        is_merged_apart = (np.diff(work_list.part_starts) > 0) & (narrow_parts == 0)
        self.launches = Launches(num_wide < len(items), num_wide > 0, bool(is_merged_apart.any()))
        filled: dict[str, npt.NDArray[Any]] = {
            "counts": np.array([0, len(items) - num_wide, len(items), len(work_list.tokens)], dtype=np.int32),
            "tokens": work_list.tokens,
            "positions": work_list.positions,
            "first_keys": work_list.first_keys,
            "items": items[np.argsort(is_wide, kind="stable")],
            "narrow_parts": narrow_parts,
            "part_starts": work_list.part_starts,
            "merge_parts": work_list.merge_parts,
        }
        for name, values in filled.items():
            self._host[name][: len(values)] = values
        self._device_buffer.copy_(self._host_buffer, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


@triton.jit
def _advance_kernel(
    p_positions,  # [E]
    p_first_keys,  # [E], written with HAS_WINDOW
    p_num_entries,  # [1]
    sliding_window,
    BLOCK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    num_entries = tl.load(p_num_entries)
    b_entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_entry = b_entry < num_entries
    b_position = tl.load(p_positions + b_entry, mask=m_entry) + 1
    tl.store(p_positions + b_entry, b_position, mask=m_entry)
    if HAS_WINDOW:
        tl.store(p_first_keys + b_entry, tl.maximum(b_position - sliding_window + 1, 0), mask=m_entry)


def advance(work: DeviceWork, spec: AttentionSpec) -> None:
    """Move every entry and its window to its sequence's next position, on the device, also within a graph.

    Items whose last key is past the old positions then reach the new ones.
    """
    num_entries = work.capacity.entries
    if num_entries:
        _advance_kernel[(-(-num_entries // _ADVANCE_ENTRIES),)](
            work.positions,
            work.first_keys,
            work.num_entries,
            spec.sliding_window or 0,
            BLOCK=_ADVANCE_ENTRIES,
            HAS_WINDOW=spec.sliding_window is not None,
            **PLAIN_OPTIONS,
        )


def work_limits(group: int, forms: FormLimits, num_heads: int, device: torch.device) -> WorkLimits:
    """Limits by which a step's work is cut for this device."""
    processors, num_kv_heads = num_processors(device), num_heads // group
    units = num_kv_heads, num_kv_heads * forms.wide_chunks
    targets = [max(1, processors * each // unit) for each, unit in zip(UNITS_PER_PROCESSOR, units, strict=True)]
    rule = SplitRule(
        narrow_entries=forms.narrow_entries,
        target_items=(targets[0], targets[1]),
        least_keys=LEAST_SPLITS,
        most_keys=MOST_SPLIT,
        full_items=-(-2 * processors // units[1]),
    )
    return WorkLimits(
        item_rows=forms.wide_entries * group,
        split_keys=SPLIT_KEYS,
        sharing_queries=_SHARING_QUERIES,
        min_saved_tokens=_MIN_SAVED_TOKENS,
        merges_all=forms.is_steady,
        rule=None if forms.is_steady else rule,
    )


def plan_work(batch: AttentionBatch, spec: AttentionSpec, group: int, forms: FormLimits, num_heads: int) -> WorkList:
    """The work of a step's layers of one kind, for buffers with the limits `forms`."""
    return make_work_list(batch, spec, group, work_limits(group, forms, num_heads, batch.device))


class _Planned(NamedTuple):
    work_list: WorkList
    work: DeviceWork


def take_device_work(
    batch: AttentionBatch, spec: AttentionSpec, group: int, forms: FormLimits, num_heads: int, v_head_dim: int
) -> DeviceWork:
    """The work of this step's layers of one kind, on the device: made once, or advanced from the previous step."""
    key: Hashable = ("device work", group, forms, num_heads, v_head_dim, spec.sliding_window)
    planned: _Planned | None = batch.plans.get(key)
    if planned is None:
        before = batch.before
        planned = before.plans.pop(key, None) if before is not None else None
        if before is not None and planned is not None and planned.work_list.advance(before, batch, spec):
            advance(planned.work, spec)
        else:
            planned = _load(
                batch, spec, group, forms, (num_heads, v_head_dim), None if planned is None else planned.work
            )
        batch.plans[key] = planned
    return planned.work


def _load(
    batch: AttentionBatch,
    spec: AttentionSpec,
    group: int,
    forms: FormLimits,
    part_shape: tuple[int, int],
    work: DeviceWork | None,
) -> _Planned:
    """Make the step's list, and load it into these buffers if they can hold it."""
    work_list = plan_work(batch, spec, group, forms, part_shape[0])
    needed = WorkCapacity.of(work_list)
    if work is None or not work.capacity.holds(needed):
        work = DeviceWork(needed.with_spare(), forms, *part_shape, batch.device)
    work.load(work_list)
    return _Planned(work_list, work)
