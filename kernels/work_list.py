"""Cut of a step's attention into work for the kernels that walk the tree: once for all layers, and reused until the tree
changes.

    entries   the step's query rows, in an order in which branches of one prefix are neighbours
    items     a run of keys, and the entries [first, end) that attend to it: a shared run of blocks for all its branches,
              the rest of each branch for its own entries
    parts     an entry's result from one item, output and log-sum-exp, if it is in several; merged at the end

Items end at absolute multiples of a split length, and at the end of an entry's shared run: other branches in the batch may cut
its sums elsewhere, and round them differently. The length is a constant, or chosen per step by `SplitRule`. Without sharing, an
entry's sums depend on its position alone: items then start at absolute multiples of `KEY_STEP`, the length is constant, and
where a merge would round differently from a single item, all entries have parts. A sequence with one new query gets items up
to the end of their split, past its length: it grows into them, and a next step changes only positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.shared_runs import SharedRuns, find_shared_runs
from radixkv.kernels.spec import AttentionSpec

__all__ = ["KEY_STEP", "NO_WORK", "SplitRule", "WorkLimits", "WorkList", "make_work_list"]

KEY_STEP = 64
"""A multiple of the keys that a kernel takes at a time, and a divisor of every `split_keys` in use."""

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


_UNCUT = 1 << 30
"""A split length past every context."""


class SplitRule(NamedTuple):
    """Chooses split lengths so that a chip is busy, few parts are written, and their memory does not grow with the context.

    Tiles of one form are cut into about `target_items`. Prompts that give `full_items` wide tiles are left uncut: each tile's
    parts would take as many rows as it has queries.

    Attributes:
        narrow_entries: items of up to so many entries take the narrow form.
        target_items: of the narrow and of the wide form.
        least_keys: split lengths are multiples of it; by form.
        most_keys: longest split of branches, by which the last items are short; prompts may have longer ones.
        full_items: wide tiles of prompts that fill the chip uncut.
    """

    narrow_entries: int
    target_items: tuple[int, int]
    least_keys: tuple[int, int]
    most_keys: int
    full_items: int


class WorkLimits(NamedTuple):
    """Limits of the kernel that does the work.

    Attributes:
        item_rows: most rows of an item, a row being a query head of one kv head's group, so that all processors have work.
        split_keys: items end at multiples of it, without a rule.
        sharing_queries: sequences with at most so many new queries take part in shared runs.
        min_saved_tokens: tokens saved per row from which a run is worth a separate item.
        merges_all: without sharing, an entry of a single item also has it as a part.
        rule: chooses split lengths where the batch shares; None: always `split_keys`.
    """

    item_rows: int
    split_keys: int
    sharing_queries: int
    min_saved_tokens: float
    merges_all: bool = False
    rule: SplitRule | None = None


@dataclass(frozen=True, slots=True)
class WorkList:
    """The arrays that a kernel walks.

    Attributes:
        tokens: [E] packed query row of each entry.
        positions: [E] of the query in its sequence.
        first_keys: [E] first position that it sees.
        items: [I, 6] first entry, past the last, row of the block tables, first key, past the last key, and the part row of its
            first entry, or -1 if the result is the output. Keys past an entry's position are not seen.
        part_starts: [E + 1] of each entry's parts in `merge_parts`.
        merge_parts: [P] part rows, an entry's by ascending key.
        num_part_rows: rows of the part buffers.
        num_shared: leading columns of the block tables that the cut depends on.
        split_keys: sequences with one new query grow to multiples of it.
    """

    tokens: Int32Array
    positions: Int32Array
    first_keys: Int32Array
    items: Int32Array
    part_starts: Int32Array
    merge_parts: Int32Array
    num_part_rows: int
    num_shared: int = 0
    split_keys: int = 1

    def advance(self, before: AttentionBatch, batch: AttentionBatch, spec: AttentionSpec) -> bool:
        """Advance from `before`, for which the list is valid, to `batch`, if that continues it: the same branches, each with
        one more token. Otherwise change nothing and return False. O(E + entries of the shared columns).
        """
        lens, lens_before = batch.host_context_lens, before.host_context_lens
        if batch.num_tokens != len(lens) or before.num_tokens != len(lens_before) or batch.host_prefill_rows:
            return False
        if (
            before.shares != batch.shares
            or before.host_prefill_rows
            or lens != tuple(length + 1 for length in lens_before)
        ):
            return False
        if any(length % self.split_keys == 0 for length in lens_before):  # a new item begins
            return False
        shared = slice(None), slice(0, self.num_shared)
        if not np.array_equal(before.host_tables[shared], batch.host_tables[shared]):
            return False
        self.positions.__iadd__(1)
        window = spec.sliding_window
        if window is not None:
            np.maximum(self.positions - (window - 1), 0, out=self.first_keys)
        return True


def _no_rows(*shape: int) -> Int32Array:
    return np.empty((0, *shape), dtype=np.int32)


NO_WORK = WorkList(
    _no_rows(), _no_rows(), _no_rows(), _no_rows(6), np.zeros(1, dtype=np.int32), _no_rows(), num_part_rows=0
)
"""An empty list."""


def make_work_list(batch: AttentionBatch, spec: AttentionSpec, group: int, limits: WorkLimits) -> WorkList:
    """The work of layers with this window and `group` query heads per kv head; T > 0.

    O(rows x blocks) for shared runs, plus O(entries + items).
    """
    starts = np.asarray(batch.host_query_starts)
    contexts = np.asarray(batch.host_context_lens)
    counts = np.diff(starts)
    shared = _find_shared(batch, spec, counts, limits)
    rows = np.flatnonzero(counts)
    covered = np.zeros_like(rows)
    if shared is not None:
        together = np.asarray(shared.order)
        rows = np.concatenate([together, np.setdiff1d(rows, together, assume_unique=True)])
        covered = np.zeros_like(rows)
        covered[: len(together)] = np.asarray(shared.covered) * batch.block_size

    counts, contexts = counts[rows], contexts[rows]
    entry_ends = np.cumsum(counts)
    entry_starts = entry_ends - counts
    entries = np.arange(entry_ends[-1])
    tokens = np.repeat(starts[rows] - entry_starts, counts) + entries
    positions = np.repeat(contexts - entry_ends, counts) + entries

    own, grows = _own_tiles(rows, entry_starts, counts, contexts, covered, spec, group, limits)
    tiles = own
    if not batch.shares:
        _even_out(own, spec, limits)
    elif shared is not None:
        tiles = np.concatenate([own, _shared_tiles(shared, entry_starts, entry_ends, batch, group, limits)])
    splits: int | Int64Array = limits.split_keys
    if limits.rule is not None and batch.shares:
        splits = _choose_splits(tiles, grows, limits.rule)
    growing_split = limits.split_keys
    if isinstance(splits, np.ndarray) and grows.any():
        growing_split = int(splits[int(grows.argmax())])  # they are of one form
    own_ends = tiles[: len(own), 4]
    own_ends[grows] = -(-own_ends[grows] // growing_split) * growing_split
    items = _split(tiles, splits)
    part_starts, merge_parts, num_part_rows = _number_parts(items, len(tokens))
    window = spec.sliding_window
    first_keys = np.zeros_like(positions) if window is None else np.maximum(positions - (window - 1), 0)
    return WorkList(
        tokens=tokens.astype(np.int32),
        positions=positions.astype(np.int32),
        first_keys=first_keys.astype(np.int32),
        items=items.astype(np.int32),
        part_starts=part_starts.astype(np.int32),
        merge_parts=merge_parts.astype(np.int32),
        num_part_rows=num_part_rows,
        num_shared=int(covered.max()) // batch.block_size,
        split_keys=growing_split,
    )


def _find_shared(
    batch: AttentionBatch, spec: AttentionSpec, counts: Int64Array, limits: WorkLimits
) -> SharedRuns | None:
    contexts = batch.host_context_lens
    rows = [
        row
        for row in np.flatnonzero((counts > 0) & (counts <= limits.sharing_queries)).tolist()
        if not spec.first_visible(contexts[row] - 1)
    ]
    if len(rows) < 2 or not batch.shares:
        return None
    reach = [(contexts[row] - int(counts[row])) // batch.block_size for row in rows]

    def is_worth(num_rows: int, num_blocks: int) -> bool:
        return (num_rows - 1) * num_blocks * batch.block_size >= limits.min_saved_tokens * num_rows

    return find_shared_runs(batch.host_tables, rows, reach, is_worth)


def _own_tiles(
    rows: Int64Array,
    entry_starts: Int64Array,
    counts: Int64Array,
    contexts: Int64Array,
    covered: Int64Array,
    spec: AttentionSpec,
    group: int,
    limits: WorkLimits,
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Keys of each sequence's queries past `covered`, in tiles of queries at absolute multiples.

    [n, 6] as `WorkList.items`, but the part row is 0 for parts and -1 for others; and which tiles are of a sequence with one
    new query.
    """
    size = max(1, limits.item_rows // group)
    first_positions = contexts - counts
    numbers = (contexts - 1) // size - first_positions // size + 1
    owner = np.repeat(np.arange(len(rows)), numbers)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(numbers) - numbers, numbers) + first_positions[owner] // size
    first = np.maximum(first_positions[owner], index * size)
    end = np.minimum(contexts[owner], (index + 1) * size)
    shift = (entry_starts - first_positions)[owner]
    window = spec.sliding_window
    first_keys = covered[owner] if window is None else np.maximum(covered[owner], first - (window - 1))
    parts = np.where(covered[owner] > 0, 0, -1)
    return np.stack([first + shift, end + shift, rows[owner], first_keys, end, parts], 1), counts[owner] == 1


def _even_out(own: Int64Array, spec: AttentionSpec, limits: WorkLimits) -> None:
    """Make tiles independent of the other queries of their sequence. A sink joins parts last, and a single item first."""
    own[:, 3] = own[:, 3] // KEY_STEP * KEY_STEP
    if limits.merges_all or spec.sinks is not None:
        own[:, 5] = 0


def _shared_tiles(
    shared: SharedRuns,
    entry_starts: Int64Array,
    entry_ends: Int64Array,
    batch: AttentionBatch,
    group: int,
    limits: WorkLimits,
) -> Int64Array:
    """As `_own_tiles`: runs of blocks, and their entries."""
    size = max(1, limits.item_rows // group)
    tiles = []
    for low, high, first_block, end_block in shared.runs:
        keys = first_block * batch.block_size, end_block * batch.block_size
        last = int(entry_ends[high - 1])
        for entry in range(int(entry_starts[low]), last, size):
            tiles.append((entry, min(entry + size, last), shared.order[low], *keys, 0))
    return np.array(tiles, dtype=np.int64)


def _choose_splits(tiles: Int64Array, grows: npt.NDArray[np.bool_], rule: SplitRule) -> Int64Array:
    """A split length per tile; `grows`: which of the first tiles are of a sequence with one new query."""
    is_wide = tiles[:, 1] - tiles[:, 0] > rule.narrow_entries
    is_prompt = np.zeros(len(tiles), dtype=bool)
    is_prompt[: len(grows)] = is_wide[: len(grows)] & ~grows
    keys = tiles[:, 4] - tiles[:, 3]
    splits = np.empty(len(tiles), dtype=np.int64)
    for form, chosen in enumerate((~is_wide, is_wide)):
        step = rule.least_keys[form]
        ideal = max(1, -(-int(keys[chosen].sum()) // (rule.target_items[form] * step))) * step
        splits[chosen] = min(ideal, rule.most_keys)
        splits[chosen & is_prompt] = _UNCUT if is_prompt.sum() >= rule.full_items else ideal
    return splits


def _split(tiles: Int64Array, split_keys: int | Int64Array) -> Int64Array:
    """Cut the tiles' keys at multiples of `split_keys`; the longest items first, so that the last ones are short."""
    firsts, ends = tiles[:, 3] // split_keys, -(-tiles[:, 4] // split_keys)
    numbers = ends - firsts
    items = np.repeat(tiles, numbers, axis=0)
    index = np.arange(len(items)) - np.repeat(np.cumsum(numbers) - numbers, numbers) + np.repeat(firsts, numbers)
    item_keys = split_keys if isinstance(split_keys, int) else np.repeat(split_keys, numbers)
    items[:, 3] = np.maximum(items[:, 3], index * item_keys)
    items[:, 4] = np.minimum(items[:, 4], (index + 1) * item_keys)
    items[np.repeat(numbers > 1, numbers), 5] = 0
    return items[np.argsort((items[:, 0] - items[:, 1]) * (items[:, 4] - items[:, 3]), kind="stable")]


def _number_parts(items: Int64Array, num_entries: int) -> tuple[Int64Array, Int64Array, int]:
    """Number the rows of parts. Returns `part_starts`, `merge_parts`, and the number of rows."""
    parts = np.flatnonzero(items[:, 5] >= 0)
    sizes = items[parts, 1] - items[parts, 0]
    ends = np.cumsum(sizes)
    items[parts, 5] = ends - sizes
    entries = np.arange(sizes.sum()) + np.repeat(items[parts, 0] - items[parts, 5], sizes)
    order = np.lexsort((np.repeat(items[parts, 3], sizes), entries))
    starts = np.concatenate([[0], np.cumsum(np.bincount(entries, minlength=num_entries))])
    return starts, order, len(entries)
