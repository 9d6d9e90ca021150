"""Lines: histories that have never branched, each in one contiguous span of blocks that the cache does not know of.

    the worker's blocks   |-- of the cache --|-- span of line 0 --|-- span of line 1 --| ...
                          0                  first_block

A line's block table counts upwards, so its KV is read as from one piece of memory. At its first fork it is moved into blocks of
the cache by copying, see `Move`; nothing is computed again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from radixkv.core.api import AcquireOp, AcquireResult, Copy
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, num_tokens

__all__ = ["ContiguousSpan", "LineAcquireOp", "Move", "Spans", "is_worth_sharing"]

_WORTH_SHARING = 64
"""Tokens in common from which two histories share blocks, whatever their lengths."""


@dataclass(frozen=True, slots=True)
class LineAcquireOp(AcquireOp):
    """An acquire of what may be a line: it will not fork by itself, nor exceed `max_tokens`.

    num_matched: how much of it was cached when last told; None: nobody was asked.
    """

    max_tokens: int = 0
    num_matched: int | None = None

    def in_blocks(self) -> AcquireOp:
        """The same of what is no line."""
        given = (self.tokens, self.reserve, self.namespace, self.seq_id)
        return AcquireOp(*given, self.waits, self.share_prefix, self.retention)


def is_worth_sharing(num_shared: int, length: int) -> bool:
    """Whether so many tokens of a prompt of `length` are to be read from blocks, and not computed again."""
    return num_shared >= _WORTH_SHARING or 2 * num_shared >= max(1, length)


@dataclass(slots=True, eq=False)
class ContiguousSpan:
    """A history in a span.

    Attributes:
        first_block: of the span.
        namespace: it is found within.
        tokens: packed, as far as they are known.
        seq_id: who runs on it; 0 for nobody, and then `tokens` are those that have KV.
        num_computed: positions reported as computed.
        num_moved: of these, those that were moved into blocks because others read them.
        num_given: blocks that who runs on it has in its table.
        waits: positions that others wait for, see `Pending`.
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
        """The next blocks of the table, up to `num_blocks` of it."""
        start, self.num_given = self.num_given, max(self.num_given, num_blocks)
        return array("i", range(self.first_block + start, self.first_block + self.num_given))

    def rest(self) -> None:
        """Nobody runs on it any more."""
        self.seq_id = self.num_given = self.num_moved = 0
        self.waits.clear()
        del self.tokens[self.num_computed * TOKEN_BYTES :]


class Move(NamedTuple):
    """The first `num_tokens` of a span, to be copied into the blocks of a sequence opened for it."""

    first_block: int
    num_tokens: int

    def copies(self, answer: AcquireResult, block_size: int) -> Iterator[Copy]:
        """Block ops that fill what the sequence does not find cached. Slots published before keep their bytes: those of a
        partly filled block are copied to the span first, and back with the rest of their block.
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
    """The spans and the lines in them. O(lines) per look-up.

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
        """A new line, in a free span."""
        line = ContiguousSpan(self._free.pop(), namespace, bytearray(tokens), seq_id)
        self._lines.append(line)
        return line

    def go_on(self, line: ContiguousSpan, tokens: bytes, seq_id: int) -> None:
        """An idle line, which `tokens` begin with, runs on with the rest of them."""
        line.tokens[:] = tokens
        line.seq_id = seq_id
        self._lines.remove(line)
        self._lines.append(line)

    def free(self, line: ContiguousSpan) -> None:
        """Its span holds nothing of use any more."""
        self._lines.remove(line)
        self._free.append(line.first_block)

    def least_recent_idle(self) -> ContiguousSpan | None:
        """None where all of them run."""
        return next((line for line in self._lines if not line.seq_id), None)

    def nearest(self, namespace: str, tokens: bytes) -> tuple[ContiguousSpan | None, int]:
        """The line that shares most with `tokens`, and how many of them; of several an idle one that they go on from."""

        def rank(found: tuple[ContiguousSpan, int]) -> tuple[int, bool]:
            line, num_shared = found
            return num_shared, not line.seq_id and num_shared == num_tokens(line.tokens)

        found = [(line, line.common_tokens(tokens)) for line in self._lines if line.namespace == namespace]
        return max(found, key=rank, default=(None, 0))
