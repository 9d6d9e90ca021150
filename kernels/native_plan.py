"""How a step's attention is cut into the tasks of the native CPU kernel. Made once for all layers of a step.

    entries   the step's query rows, in an order in which branches of one prefix are neighbours
    items     a run of keys, and the entries [first, last) that attend to it: a shared run of blocks for all branches on it,
              what is left of each branch for its own entries
    parts     what an entry has from one item, output and log-sum-exp, where it stands in several; merged at the end

Items end at absolute multiples of `SPLIT_KEYS`, and where what an entry shares ends: a batch of other branches may cut its sums
elsewhere, and round them otherwise. They have at most `ITEM_ROWS` rows of a kv head, so that all threads find work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.shared_runs import find_shared_runs
from radixkv.kernels.spec import AttentionSpec

__all__ = ["ITEM_ROWS", "SPLIT_KEYS", "NativePlan", "plan_native"]

SPLIT_KEYS = 1024
ITEM_ROWS = 96
SHARING_QUERIES = 64
"""Sequences with up to so many new queries take part in shared runs."""

MIN_SAVED_TOKENS = 16
"""A run is worth an item of its own from so many tokens, per row on it, that are not read again."""

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NativePlan:
    """The arrays that the kernel walks; `native/attention.cpp` says what each holds.

    `num_part_rows`: rows of its part buffers.
    """

    tokens: Int32Array
    positions: Int32Array
    first_keys: Int32Array
    items: Int32Array
    parts: Int32Array
    blocks: Int32Array
    merges: Int32Array
    merge_parts: Int32Array
    num_part_rows: int


class _Item(NamedTuple):
    """Entries [first, last) attend to keys [first_key, last_key) of `row`'s table; alone, or with parts to merge."""

    first: int
    last: int
    row: int
    first_key: int
    last_key: int
    is_part: bool


class _Planner:
    def __init__(self, batch: AttentionBatch, spec: AttentionSpec, group: int) -> None:
        self._batch = batch
        self._spec = spec
        self._entries_per_item = max(1, ITEM_ROWS // group)
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._positions: list[npt.NDArray[np.int64]] = []
        self._num_entries = 0
        self._items: list[_Item] = []

    def plan(self) -> NativePlan:
        starts = self._batch.host_query_starts
        prefill = self._batch.host_prefill_rows
        sharing = [row for row in prefill if starts[row + 1] - starts[row] <= SHARING_QUERIES]
        sharing.extend(self._batch.host_decode_rows)
        alone = [row for row in prefill if starts[row + 1] - starts[row] > SHARING_QUERIES]
        self._add_sharing(sharing)
        for row in alone:
            self._add_row(row, 0)
        return self._finish()

    def _add_sharing(self, rows: list[int]) -> None:
        batch = self._batch
        starts, contexts = batch.host_query_starts, batch.host_context_lens
        whole = [row for row in rows if not self._spec.first_visible(contexts[row] - 1)]
        limits = [(contexts[row] - (starts[row + 1] - starts[row])) // batch.block_size for row in whole]

        def is_worth(num_rows: int, num_blocks: int) -> bool:
            return (num_rows - 1) * num_blocks * batch.block_size >= MIN_SAVED_TOKENS * num_rows

        shared = find_shared_runs(batch.host_tables, whole, limits, is_worth) if len(whole) > 1 else None
        if shared is None:
            for row in rows:
                self._add_row(row, 0)
            return
        ends = [self._num_entries]
        for row, covered in zip(shared.order, shared.covered, strict=True):
            self._add_row(row, covered * batch.block_size)
            ends.append(self._num_entries)
        for low, high, first, end in shared.runs:
            keys = (first * batch.block_size, end * batch.block_size)
            self._items.extend(
                _Item(entry, min(entry + self._entries_per_item, ends[high]), shared.order[low], *span, is_part=True)
                for entry in range(ends[low], ends[high], self._entries_per_item)
                for span in _spans(*keys)
            )
        together = set(shared.order)
        for row in rows:
            if row not in together:
                self._add_row(row, 0)

    def _add_row(self, row: int, num_covered: int) -> None:
        """A sequence's queries, over the keys from `num_covered` on; those before lie in shared runs."""
        first_token, last_token = self._batch.host_query_starts[row : row + 2]
        context = self._batch.host_context_lens[row]
        start = context - (last_token - first_token)
        self._tokens.append(np.arange(first_token, last_token))
        self._positions.append(np.arange(start, context))
        shift = self._num_entries - start
        position = start
        while position < context:  # tiles of queries, at absolute multiples
            end = min(context, (position // self._entries_per_item + 1) * self._entries_per_item)
            first_key = max(num_covered, self._spec.first_visible(position))
            spans = list(_spans(first_key, end))
            is_part = num_covered > 0 or len(spans) > 1
            self._items.extend(_Item(position + shift, end + shift, row, *span, is_part) for span in spans)
            position = end
        self._num_entries += context - start

    def _finish(self) -> NativePlan:
        tokens, positions = np.concatenate(self._tokens), np.concatenate(self._positions)
        window = self._spec.sliding_window
        first_keys = np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)
        # The longest first: what is left for the end should be short.
        items = sorted(self._items, key=lambda item: (item.first - item.last) * (item.last_key - item.first_key))
        block_size = self._batch.block_size
        rows, parts, blocks = [], [], []
        num_blocks = num_part_rows = 0
        for item in items:
            run = self._batch.host_tables[item.row, item.first_key // block_size : -(-item.last_key // block_size)]
            rows.append((item.first, item.last, num_blocks, item.first_key, item.last_key))
            parts.append(num_part_rows if item.is_part else -1)
            blocks.append(run)
            num_blocks += len(run)
            num_part_rows += (item.last - item.first) if item.is_part else 0
        merges, merge_parts = _merge_list([item for item in items if item.is_part])
        return NativePlan(
            tokens=tokens.astype(np.int32),
            positions=positions.astype(np.int32),
            first_keys=first_keys.astype(np.int32),
            items=np.array(rows, dtype=np.int32),
            parts=np.array(parts, dtype=np.int32),
            blocks=np.concatenate(blocks),
            merges=merges,
            merge_parts=merge_parts,
            num_part_rows=num_part_rows,
        )


def _merge_list(items: list[_Item]) -> tuple[Int32Array, Int32Array]:
    """Per entry with parts (entry, first, past the last) into the second array, which names its part rows by ascending key."""
    if not items:
        return np.empty((0, 3), np.int32), np.empty(0, np.int32)
    entries = np.concatenate([np.arange(item.first, item.last) for item in items])
    keys = np.repeat([item.first_key for item in items], [item.last - item.first for item in items])
    order = np.lexsort((keys, entries))
    merged, firsts = np.unique(entries[order], return_index=True)
    merges = np.stack([merged, firsts, np.append(firsts[1:], len(order))], axis=1)
    return merges.astype(np.int32), order.astype(np.int32)


def _spans(first_key: int, last_key: int) -> Iterator[tuple[int, int]]:
    while first_key < last_key:
        end = min(last_key, (first_key // SPLIT_KEYS + 1) * SPLIT_KEYS)
        yield first_key, end
        first_key = end


def plan_native(batch: AttentionBatch, spec: AttentionSpec, group: int) -> NativePlan:
    """The plan for layers with this window and `group` query heads per kv head; T > 0.

    O(rows x blocks) for what rows share, plus O(entries + items).
    """
    return _Planner(batch, spec, group).plan()
