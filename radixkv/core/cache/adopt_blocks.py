"""Adoption by record: rebuilds the tree from what a holder kept of each block, unread; see `tree.block_records`.

Blocks may come in any order: one whose history is not whole yet waits for the block above it. Open sequences come before, as
in `adopt`. Blocks are refused one by one; the holder gets the empty record of each.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import groupby

from radixkv.core.api import AdoptBlocksOp, Retention
from radixkv.core.cache.adopt import Adoption, block_table
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tree.block_records import DEFAULT_RETENTION, NONE_RECORDED, BlockRecord, Playback, PlayedBlock
from radixkv.core.tree.journal import Recorded
from radixkv.core.validation import MAX_RETENTION_RANGES

__all__ = ["BlockAdoption"]


class BlockAdoption(Adoption):
    """`adopt_blocks` and `take_records` of a `PrefixCache`."""

    def adopt_blocks(self, block_ids: Sequence[int], records: Sequence[bytes]) -> int:
        """Cache what blocks hold by the records that `take_records` gave of them, in a pool with no blocks taken; returns how
        many of these blocks are cached now.

        `records`: of each block. One that is damaged, of another block or of another life of the pool, a block that an open
        sequence has, and one of a namespace that was cleared are refused alone; so is a block without the block above it, once
        the first block is taken. `take_records` has the empty record of each. O(blocks + histories).

        Raises:
            InvalidArgumentError: the cache keeps no records, no block ids, not as many `records`; or blocks of the pool were
                taken by other calls already.
        """
        self._enter()
        told = block_table(block_ids)
        if not isinstance(records, Sequence) or not all(isinstance(each, bytes) for each in records):
            raise InvalidArgumentError("records", records, "bytes of each block")
        if len(records) != len(told):
            raise InvalidArgumentError("records", f"{len(records)} of them", f"{len(told)}, one of each block")
        kept = self._forest.records
        if kept is None:
            raise InvalidArgumentError("op", "adopt_blocks", "that of a holder which keeps records")
        self._require_untaken()
        if self._adopted is not self._played_last:
            self._playback.forget_path()
        read: list[tuple[int, BlockRecord]] = []
        for block_id, packed in zip(told, records, strict=True):
            if (record := kept.read(block_id, packed)) is None:
                kept.refuse(block_id)
            else:
                read.append((block_id, record))
        num_cached, kept.is_played_back = 0, True
        try:
            for path, num_kept, num_known in self._playback.add(read):
                self._adopt_path(path, num_kept, num_known)
                num_cached += sum(map(kept.settle, path[num_known:]))
        finally:
            kept.is_played_back = False
        return num_cached

    def _adopt_path(self, path: list[PlayedBlock], num_kept: int, num_known: int) -> None:
        block_size, told, namespace = self._forest.block_size, path[num_kept:], path[0].record.namespace
        assert namespace is not None, "a whole history begins with a first block"
        self.adopt(
            b"".join([block.record.tokens for block in told]),
            array("i", [block.block_id for block in told]),
            num_kept * block_size,
            namespace,
            _ranges(path[num_known:], num_known * block_size, block_size),
        )
        self._played_last = self._adopted

    def expect_records(self) -> None:
        """The holder may have kept records of an earlier cache: it forgets that of each block that is taken. O(pool)."""
        if self._forest.records is not None:
            self._forest.records.expect()

    def namespaces_of(self, op: AdoptBlocksOp) -> set[str]:
        """The namespaces that histories of these records begin in. O(blocks)."""
        kept = self._forest.records
        read = () if kept is None else map(kept.read, op.block_ids, op.records)
        return {record.namespace for record in read if record is not None and record.namespace is not None}

    def take_records(self) -> Recorded:
        """The records of blocks that have changed since the last call, each once: keep the latest of each block, unread, and
        drop the blocks of empty ones. O(changed). None without a `record_key`.
        """
        kept = self._forest.records
        if kept is None:
            return NONE_RECORDED
        if not self._forest.pool.can_claim and self._playback.is_used:
            for block in self._playback.waiting():
                kept.refuse(block.block_id)
            self._playback = Playback(self._forest.block_bytes)
        return kept.take()


def _ranges(blocks: Sequence[PlayedBlock], position: int, block_size: int) -> tuple[Retention, ...]:
    """The retention of blocks of a history from `position` on."""
    ranges = []
    for (priority, duration_s), alike in groupby(block.record.retention for block in blocks):
        start, position = position, position + block_size * sum(1 for _ in alike)
        if (priority, duration_s) != DEFAULT_RETENTION:
            ranges.append(Retention(start, position, priority, None if duration_s == math.inf else duration_s))
    return tuple(ranges[:MAX_RETENTION_RANGES])
