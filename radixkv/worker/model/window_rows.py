"""Which blocks have K and V in the layers with a sliding window.

A query of these layers sees the last `window` tokens alone. So their caches have fewer rows than the pool has blocks. A block
has a row while a branch needs it, and afterwards until another block takes the row:

    block         0   1   2   3   4   5   6     in block tables, and in the caches of the other layers
    row           -   2   0   -   -   1   -     in the caches of layers with a window
    num_filled    0  16  16   0   0   5   0     first slots of the block that the row holds

The caches have one row more, which stays zero: kernels multiply what no query sees by 0, and a number of another tenant's may
be infinite.

A branch goes on at a position only if all tokens that a window shows there are in rows. A hit that ends elsewhere is computed
again from the last such position on: the other layers' K and V are read, not written, and the blocks have rows again.

The row used longest ago is taken first. Before all others go those that a prompt has only passed through, since hits end where
prompts and replies do, or where a hit has ended before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.worker.model.rows import ForwardRow

__all__ = ["WindowRows"]

_PASSED = 1 << 40
"""Turns by which a row of a block that a prompt has passed counts as older."""

_TAKEN_AT_ONCE = 16
"""At least one in so many rows is taken at a time: the search is O(rows)."""


class WindowRows:
    """The rows of a pool. For one thread; the ranks of a model take the same rows in the same order.

    Args:
        num_blocks, block_size: of the pool.
        num_rows: of the caches of layers with a window.
        window: tokens that a query sees, including its own: of these layers the longest.

    Attributes:
        num_taken: rows taken from a block so far.
    """

    def __init__(self, num_blocks: int, num_rows: int, block_size: int, window: int) -> None:
        for argument, value in (("num_window_blocks", num_rows), ("window", window)):
            if value < 1:
                raise InvalidArgumentError(argument, value, "at least 1")
        self.num_rows, self.window = num_rows, window
        self.num_taken = 0
        self._block_size = block_size
        self._row_of = np.full(num_blocks, -1, dtype=np.int32)
        self._num_filled = np.zeros(num_blocks, dtype=np.int32)
        self._block_of = np.full(num_rows, -1, dtype=np.int32)
        self._last_used = np.zeros(num_rows, dtype=np.int64)
        self._free = list(range(num_rows))[::-1]
        self._turn = 0

    # -- where a branch can go on

    def resumable(self, block_table: array[int], position: int) -> int:
        """The last position up to `position` at which a branch with this table can go on. O(blocks)."""
        size = self._block_size
        num_blocks = -(-position // size)
        filled = self._num_filled[_ids(block_table, 0, num_blocks)]
        wanted = np.full(num_blocks, size, dtype=np.int32)
        wanted[-1:] = position - (num_blocks - 1) * size
        gaps = np.flatnonzero(filled < wanted)
        if not len(gaps) or gaps[-1] < self._first_seen(position):
            return position
        seen = np.maximum(0, gaps * size - self.window + 1) // size  # first block that a branch at a gap's start sees
        before = np.concatenate([[-1], gaps[:-1]])
        return int(gaps[before < seen][-1]) * size

    def has_window(self, block_table: array[int], position: int) -> bool:
        """Whether a branch with this table can go on at `position`. O(blocks of the window)."""
        first, size = self._first_seen(position), self._block_size
        num_whole, rest = divmod(position, size)
        filled = self._num_filled[_ids(block_table, first, num_whole + (rest > 0))]
        return bool((filled[: num_whole - first] == size).all()) and (not rest or bool(filled[-1] >= rest))

    def num_fitting(self, spans: Iterable[tuple[array[int], int, int]]) -> int:
        """How many of these branches, from the first on, have enough rows to be computed in one step: each with its table, its
        first position and the end. What several show counts once; a block that a table lacks counts too. O(blocks seen).
        """
        each = list(spans)
        if sum(-(-end // self._block_size) - self._first_seen(start) for _, start, end in each) <= self.num_rows:
            return len(each)
        seen: set[int] = set()
        number = num_lacking = 0
        for table, start, end in each:
            first, past = self._first_seen(start), -(-end // self._block_size)
            seen.update(table[first:past])
            num_lacking += max(0, past - max(first, len(table)))
            if len(seen) + num_lacking > self.num_rows:
                break
            number += 1
        return number

    def num_seen(self, num_tokens: int) -> int:
        """Blocks that a branch of so many tokens needs at a time, while it decodes."""
        return -(-min(num_tokens, self.window + 2 * self._block_size) // self._block_size)

    def _first_seen(self, position: int) -> int:
        """First block that a query at `position` sees."""
        return max(0, position - self.window + 1) // self._block_size

    # -- a step

    def take(self, rows: Sequence[ForwardRow]) -> None:
        """Give rows to all blocks that the step reads or writes, from blocks that it does not."""
        self._turn += 1
        tables = [
            _ids(row.block_table, self._first_seen(row.start), -(-_end(row) // self._block_size))
            for row in rows
            if row.num_windowed < _end(row)
        ]
        if not tables:
            return
        blocks = np.concatenate(tables)
        taken = self._row_of[blocks]
        self._last_used[taken[taken >= 0]] = self._turn
        if (taken < 0).any():
            self._allocate(np.unique(blocks[taken < 0]))
            assert (self._row_of[blocks] >= 0).all(), "a step of more blocks than there are rows; see `num_fitting`"

    def slots(self, rows: Sequence[ForwardRow]) -> npt.NDArray[np.int64]:
        """[T] slots of the windowed caches for the rows' tokens; -1: not written. O(T)."""
        size = self._block_size
        slots = np.empty(sum(len(row.token_ids) for row in rows), dtype=np.int64)
        first = 0
        for row in rows:
            end = first + len(row.token_ids)
            if end - first == 1 and row.start >= row.num_stored:  # the common case, which numpy makes slower
                block, offset = divmod(row.start, size)
                slots[first] = int(self._row_of[row.block_table[block]]) * size + offset
            else:
                at = np.arange(row.start, _end(row))
                blocks = np.frombuffer(row.block_table, dtype=np.int32)[at // size]
                is_there = (at < row.num_stored) & (at % size < self._num_filled[blocks])
                own = self._row_of[blocks] * np.int64(size) + at % size
                slots[first:end] = np.where(is_there | (at < row.num_windowed), -1, own)
            first = end
        return slots

    def tables(self, block_tables: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Block tables of any shape, as tables of rows: that of zeros for blocks without one, which no query sees."""
        rows = self._row_of[block_tables]
        return np.where(rows < 0, np.int32(self.num_rows), rows)

    def written(self, rows: Sequence[ForwardRow]) -> None:
        """The step has been computed."""
        for row in rows:
            first, end = max(row.start, row.num_windowed), _end(row)
            if end - row.start == 1 and first < end:
                block, offset = divmod(first, self._block_size)
                block = row.block_table[block]
                if self._num_filled[block] == offset:
                    self._num_filled[block] = offset + 1
            elif first < end:
                self._fill(row.block_table, first, end)
                if end - row.start > 1:
                    self._pass(row, end)

    def _fill(self, block_table: array[int], first: int, end: int) -> None:
        size = self._block_size
        low = first // size
        blocks = _ids(block_table, low, -(-end // size))
        ends = np.minimum((np.arange(len(blocks)) + low + 1) * size, end) - (np.arange(len(blocks)) + low) * size
        if self._num_filled[blocks[0]] < first - low * size:
            blocks, ends = blocks[1:], ends[1:]  # its first slots are missing
        self._num_filled[blocks] = np.maximum(self._num_filled[blocks], ends)

    def _pass(self, row: ForwardRow, end: int) -> None:
        """Blocks that the window has left go first, but those seen where the row's hit has ended."""
        left = np.arange(self._first_seen(row.start), self._first_seen(end))
        is_kept = (left >= self._first_seen(row.num_stored)) & (left * self._block_size < row.num_stored)
        taken = self._row_of[np.frombuffer(row.block_table, dtype=np.int32)[left[~is_kept]]]
        self._last_used[taken[taken >= 0]] = self._turn - _PASSED

    # -- block ops

    def copied(self, ops: Sequence[Copy]) -> list[Copy]:
        """Block copies as copies of rows, in order. A copy of what has no row has none."""
        copies = []
        for op in ops:
            if op.src == op.dst or not op.num_tokens:
                continue
            source, num_filled = self._row_of[op.src], min(op.num_tokens, int(self._num_filled[op.src]))
            if num_filled and self._row_of[op.dst] < 0:
                self._last_used[source] = self._turn
                self._allocate(np.array([op.dst]))
            self._num_filled[op.dst] = num_filled if self._row_of[op.dst] >= 0 else 0
            if num_filled and self._row_of[op.dst] >= 0:
                copies.append(Copy(int(source), int(self._row_of[op.dst]), num_filled))
        return copies

    def rows_of(self, block_id: int, other_id: int) -> tuple[int, int] | None:
        """Rows of two blocks; None: one has none, or none of all its slots."""
        if min(self._num_filled[block_id], self._num_filled[other_id]) < self._block_size:
            return None
        return int(self._row_of[block_id]), int(self._row_of[other_id])

    def _allocate(self, blocks: npt.NDArray[np.int32]) -> None:
        """A row for each of these blocks, as far as there are rows that the last step has not used."""
        if len(blocks) > len(self._free):
            self._take_oldest(max(len(blocks) - len(self._free), self.num_rows // _TAKEN_AT_ONCE))
        for block in blocks[: len(self._free)].tolist():
            row = self._free.pop()
            self._row_of[block], self._block_of[row] = row, block
            self._num_filled[block], self._last_used[row] = 0, self._turn

    def _take_oldest(self, number: int) -> None:
        unused = np.flatnonzero((self._block_of >= 0) & (self._last_used < self._turn))
        if len(unused) > number:
            unused = unused[np.argpartition(self._last_used[unused], number)[:number]]
        blocks = self._block_of[unused]
        self._row_of[blocks], self._num_filled[blocks] = -1, 0
        self._block_of[unused] = -1
        self._free += unused.tolist()
        self.num_taken += len(unused)


def _ids(block_table: array[int], first: int, end: int) -> npt.NDArray[np.int32]:
    return np.frombuffer(block_table, dtype=np.int32)[first:end] if block_table else np.empty(0, dtype=np.int32)


def _end(row: ForwardRow) -> int:
    return row.start + len(row.token_ids)
