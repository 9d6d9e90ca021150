"""Lines: histories that have never branched, each in one contiguous span of blocks outside the cache.

    the worker's blocks   |-- of the cache --|-- span of line 0 --|-- span of line 1 --| ...
                          0                  first_block

A line's block table counts upwards, so its KV is read as one piece of memory. At its first fork it is copied into blocks of the
cache, see `Move`; nothing is recomputed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from radixkv.core.api import AcquireOp, AcquireResult, Copy
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, num_tokens

__all__ = ["ContiguousSpan", "LineAcquireOp", "Move", "Spans", "is_worth_sharing"]

_WORTH_SHARING = 64
"""Common tokens from which two histories share blocks, whatever their lengths."""


@dataclass(frozen=True, slots=True)
class LineAcquireOp(AcquireOp):
    """An acquire that may become a line: it will not fork by itself, nor exceed `max_tokens`.

    num_matched: cached tokens at the last match; None: never matched.
    """

    max_tokens: int = 0
    num_matched: int | None = None

    def in_blocks(self) -> AcquireOp:
        """The same acquire in blocks."""
        return AcquireOp(*(getattr(self, each.name) for each in fields(AcquireOp)))


def is_worth_sharing(num_shared: int, length: int) -> bool:
    """Whether so many tokens of a prompt of `length` should be read from blocks instead of recomputed."""
    return num_shared >= _WORTH_SHARING or 2 * num_shared >= max(1, length)


@dataclass(slots=True, eq=False)
class ContiguousSpan:
    """A history in a span.

    Attributes:
        first_block: of the span.
        namespace: of the history.
        tokens: packed, as far as known.
        seq_id: of the branch that runs on it; 0: idle, and then all `tokens` have KV.
        num_computed: positions reported as computed.
        num_moved: of these, positions moved into blocks because others read them.
        num_given: blocks in the running branch's table.
        waits: positions that acquires wait for, see `Pending`.
    """

    first_block: int
    namespace: str
    tokens: bytearray
    seq_id: int
    num_computed: int = 0
    num_moved: int = 0
    num_given: int = 0
    waits: set[int] = field(default_factory=set)

    def common_tokens(self, tokens: bytes) -> int:
        """Length of the longest common prefix. O(shared bytes)."""
        return common_prefix_bytes(tokens, 0, self.tokens, len(self.tokens)) // TOKEN_BYTES

    def give(self, num_blocks: int) -> array[int]:
        """Blocks to append to the table so that it has `num_blocks`."""
        start, self.num_given = self.num_given, max(self.num_given, num_blocks)
        return array("i", range(self.first_block + start, self.first_block + self.num_given))

    def rest(self) -> None:
        """The branch that ran on it has ended."""
        self.seq_id = self.num_given = self.num_moved = 0
        self.waits.clear()
        del self.tokens[self.num_computed * TOKEN_BYTES :]


class Move(NamedTuple):
    """The first `num_tokens` of a span, to be copied into the blocks of a sequence opened for it."""

    first_block: int
    num_tokens: int

    def copies(self, answer: AcquireResult, block_size: int) -> Iterator[Copy]:
        """Block ops that fill the positions that the sequence did not find cached. Published slots keep their bytes: those of a
        partly filled block are first copied to the span, and then back with the rest of their block.
        """
        yield from answer.ops
        if answer.num_stored_tokens >= self.num_tokens:
            return
        table, (first, num_stored) = answer.block_table, divmod(answer.num_stored_tokens, block_size)
        if num_stored:
            yield Copy(table[first], self.first_block + first, num_stored)
        for index in range(first, -(-self.num_tokens // block_size)):
            yield Copy(self.first_block + index, table[index], min(block_size, self.num_tokens - index * block_size))


class Spans:
    """The spans and their lines. O(lines) per look-up.

    Attributes:
        blocks_each: length of a span.
    """

    def __init__(self, first_block: int, num_spans: int, blocks_each: int) -> None:
        self.blocks_each = blocks_each
        self._free = [first_block + index * blocks_each for index in reversed(range(num_spans))]
        self._lines: list[ContiguousSpan] = []  # the least recently used first

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[ContiguousSpan]:
        return iter(list(self._lines))

    @property
    def has_free(self) -> bool:
        """Whether a line can be opened."""
        return bool(self._free)

    def open(self, namespace: str, tokens: bytes, seq_id: int) -> ContiguousSpan:
        """Open a line in a free span."""
        line = ContiguousSpan(self._free.pop(), namespace, bytearray(tokens), seq_id)
        self._lines.append(line)
        return line

    def go_on(self, line: ContiguousSpan, tokens: bytes, seq_id: int) -> None:
        """Continue an idle line, a prefix of `tokens`, with the rest of them."""
        line.tokens[:] = tokens
        line.seq_id = seq_id
        self._lines.remove(line)
        self._lines.append(line)

    def free(self, line: ContiguousSpan) -> None:
        """Drop a line and free its span."""
        self._lines.remove(line)
        self._free.append(line.first_block)

    def least_recent_idle(self) -> ContiguousSpan | None:
        """The least recently used idle line; None if all run."""
        return next((line for line in self._lines if not line.seq_id), None)

    def nearest(self, namespace: str, tokens: bytes) -> tuple[ContiguousSpan | None, int]:
        """The line that shares most with `tokens`, and how many; among equals, an idle one that `tokens` continue."""

        def rank(found: tuple[ContiguousSpan, int]) -> tuple[int, bool]:
            line, num_shared = found
            return num_shared, not line.seq_id and num_shared == num_tokens(line.tokens)

        found = [(line, line.common_tokens(tokens)) for line in self._lines if line.namespace == namespace]
        return max(found, key=rank, default=(None, 0))
