"""The changes of a cache as events: numbered, named by hashes, and kept for a while for readers that resume.

The feed reads the log, outside of insert and evict. It looks up the hashes of removed blocks by block id, in tables of 16 bytes
per block that follow the log; so the log must be read in order and by one feed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from radixkv.core.api import CacheEvent, CacheEventKind
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.change_log import NO_BLOCK, EventLog, Record
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.hints import HintChange
from radixkv.core.tree.roots import RootNode

__all__ = ["MAX_EVENT_BLOCKS", "EventFeed", "FeedEntry", "hint_events"]

MAX_EVENT_BLOCKS = 4096
"""Most blocks of one event; a longer run of blocks is split into several."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Most bytes of token ids and hashes that are kept for readers that resume."""

MAX_IDLE_NAMESPACES = 1024
"""At least this many empty namespaces keep their numbering."""


class FeedEntry(NamedTuple):
    """An event with its number among those of its namespace; `parent_block` is the block above its first one.

    Its hashes are 0 where no reader knew the blocks above.
    """

    namespace_number: int
    parent_block: int
    event: CacheEvent


def hint_events(change: HintChange) -> Iterator[CacheEvent]:
    """Blocks of a tier below the pool as events: hashes without tokens and block ids, since a holder reports no others."""
    kinds: tuple[tuple[CacheEventKind, array[int]], ...] = (("removed", change.lost), ("stored", change.saved))
    for kind, hashes in kinds:
        for start in range(0, len(hashes), MAX_EVENT_BLOCKS):
            part = hashes[start : start + MAX_EVENT_BLOCKS]
            yield CacheEvent(0, kind, change.owner, 0, b"", array("i"), part, None, change.tier)


def _size_of(event: CacheEvent) -> int:
    return len(event.tokens) + event.block_hashes.itemsize * len(event.block_hashes)


class EventFeed:
    """The events of one cache. One start of the log to its stop is one `life`.

    Numbers of one life never occur in a later one, so a reader with an old number is detected.

    Args:
        forest: the trees of the log.
        log: started by the first reader.
        capacity: how many entries are kept.
        first_number: of the first event.
    """

    def __init__(self, forest: Forest, log: EventLog, capacity: int, first_number: int) -> None:
        self.forest = forest
        self.life = 0
        self.next_number = first_number
        self.num_subscribers = self.num_sent = self.num_resets = 0
        self._log = log
        self._capacity = capacity
        self._entries: list[FeedEntry] = []
        self._num_bytes = 0
        self._hashes = array("Q")
        self._namespaces: list[str | None] = []
        self._namespace_numbers: dict[str, int] = {}
        self._synced_number: int | None = None
        log.on_stop = self._end_life

    # -- reading the log ----------------------------------------------------------------------------------------------

    def drain(self, max_cost: int) -> bool:
        """Turn changes into events until their blocks, and one for each, amount to `max_cost`; returns whether none is left.

        Begins a new life where the log had stopped: O(blocks of the pool) then.
        """
        self._log.bound()
        if not self._log.is_recording:
            self._begin_life()
        while len(self._log) and max_cost > 0:
            max_cost -= 1 + self._append(self._log.take())
        return not len(self._log)

    def _begin_life(self) -> None:
        if self.life:
            self.next_number += 2  # neither the last number of an earlier life nor the one after it occurs again
        self.life += 1
        self._namespace_numbers.clear()
        self._hashes = array("Q", bytes(8 * self.forest.pool.num_blocks))
        self._namespaces = [None] * self.forest.pool.num_blocks
        self._log.start()

    def _end_life(self) -> None:
        self._entries.clear()
        self._num_bytes = 0
        self._synced_number = None
        self._hashes = array("Q")
        self._namespaces = []

    def _append(self, record: Record) -> int:
        """Turn a change into events; returns the number of its blocks."""
        if record[0] == "stored":
            return self._append_stored(*record[1:])
        if record[0] == "removed":
            return self._append_removed(*record[1:])
        if record[0] == "hinted":
            for event in hint_events(record[1]):
                self._keep(NO_BLOCK, *event[1:])
            return len(record[1].saved) + len(record[1].lost)
        self._keep(NO_BLOCK, "cleared", record[1], 0, b"", array("i"), array("Q"), None)
        return 0

    def _append_stored(
        self,
        namespace: str,
        end_bytes: int,
        tokens: bytes | bytearray,
        blocks: array[int],
        num_blocks: int,
        parent_block: int,
    ) -> int:
        block_bytes = self.forest.block_bytes
        num_bytes = num_blocks * block_bytes
        for first in range(0, num_blocks, MAX_EVENT_BLOCKS):
            end = min(first + MAX_EVENT_BLOCKS, num_blocks)
            above = blocks[first - 1] if first else parent_block
            part = blocks[first:end]
            packed = bytes(tokens[first * block_bytes : end * block_bytes])
            parent_hash = None if above == NO_BLOCK else self._hashes[above]
            if parent_hash == 0:
                hashes = array("Q", bytes(8 * len(part)))
            else:
                seed = namespace_hash(namespace) if parent_hash is None else parent_hash
                hashes = chained_hashes(seed, packed, block_bytes)
            self._name(part, namespace, hashes)
            position = (end_bytes - num_bytes + first * block_bytes) // TOKEN_BYTES
            self._keep(above, "stored", namespace, position, packed, part, hashes, parent_hash)
        return num_blocks

    def _append_removed(self, end_bytes: int, blocks: array[int]) -> int:
        """Blocks unknown to readers, such as those of a cleared namespace, are removed without an event."""
        namespace = self._namespaces[blocks[0]]
        if namespace is None:
            return len(blocks)
        start_bytes = end_bytes - len(blocks) * self.forest.block_bytes
        for first in range(0, len(blocks), MAX_EVENT_BLOCKS):
            part = blocks[first : first + MAX_EVENT_BLOCKS]
            hashes = array("Q", [self._hashes[block] for block in part])
            position = start_bytes // TOKEN_BYTES + first * self.forest.block_size
            self._keep(NO_BLOCK, "removed", namespace, position, b"", part, hashes, None)
        for block in blocks:
            self._namespaces[block] = None
        return len(blocks)

    def _name(self, blocks: array[int], namespace: str, hashes: array[int]) -> None:
        for block, value in zip(blocks, hashes, strict=True):
            self._hashes[block] = value
            self._namespaces[block] = namespace if value else None

    def _keep(self, parent_block: int, kind: CacheEventKind, namespace: str, *fields: Any) -> None:
        """Number and store an event. `fields`: those of a `CacheEvent` from `position` on."""
        event = CacheEvent(self.next_number, kind, namespace, *fields)
        self._entries.append(FeedEntry(self.next_in(namespace), parent_block, event))
        self.next_number += 1
        self._namespace_numbers[namespace] += 1
        self._num_bytes += _size_of(event)
        if len(self._entries) >= 2 * self._capacity or self._num_bytes > 2 * MAX_KEPT_BYTES:
            self._trim()

    def _trim(self) -> None:
        """Drop the older half of the entries. O(1) per entry, amortised."""
        num_gone = max(len(self._entries) - self._capacity, len(self._entries) // 2)
        self._num_bytes -= sum(_size_of(entry.event) for entry in self._entries[:num_gone])
        del self._entries[:num_gone]
        roots, numbers = self.forest.roots, self._namespace_numbers
        if len(numbers) > 2 * (len(roots) + MAX_IDLE_NAMESPACES):
            self._namespace_numbers = {name: number for name, number in numbers.items() if name in roots}

    # -- for readers --------------------------------------------------------------------------------------------------

    @property
    def first_number(self) -> int:
        """Number of the oldest stored entry."""
        return self.next_number - len(self._entries)

    def entries(self, first: int, max_count: int) -> list[FeedEntry]:
        """Entries from number `first` on, which must be stored. O(count)."""
        index = first - self.first_number
        return self._entries[index : index + max_count]

    def next_in(self, namespace: str | None) -> int:
        """The number of the next event of a namespace; of all namespaces if None. O(1).

        A namespace begins with the pool's current number, which is above all its earlier numbers.
        """
        if namespace is None:
            return self.next_number
        return self._namespace_numbers.setdefault(namespace, self.next_number)

    def find(self, number: int, namespace: str | None) -> int | None:
        """The pool's number at which a reader of `number` resumes; None where its events are not stored. O(stored)."""
        if self._synced_number is None:
            return None
        first = max(self.first_number, self._synced_number)
        if namespace is None:
            return number if first <= number <= self.next_number else None
        if number == self.next_in(namespace):
            return self.next_number
        own = [entry for entry in self.entries(first, len(self._entries)) if entry.event.namespace == namespace]
        if not own or not own[0].namespace_number <= number <= own[-1].namespace_number:
            return None
        return next(entry.event.sequence_number for entry in own if entry.namespace_number == number)

    def synced(self) -> None:
        """Record that a reader has every event so far: from here on it may disconnect and resume."""
        if self._synced_number is None:
            self._synced_number = self.next_number

    def node_hashes(self, root: RootNode, node: Node, first: int, end: int) -> tuple[int | None, array[int]]:
        """The parent's hash, and hashes of a node's blocks [first, end); the blocks above must have hashes already.
        O(blocks).
        """
        assert node.parent is not None, "a root has no blocks"
        above = node.blocks[first - 1] if first else (node.parent.blocks[-1] if node.parent.blocks else NO_BLOCK)
        parent_hash = None if above == NO_BLOCK else self._hashes[above]
        assert parent_hash != 0, "parents are told of first"
        blocks = node.blocks[first:end]
        hashes = array("Q", [self._hashes[block] for block in blocks])
        if 0 in hashes:
            block_bytes = self.forest.block_bytes
            tokens = bytes(node.key[first * block_bytes : end * block_bytes])
            hashes = chained_hashes(
                namespace_hash(root.namespace) if parent_hash is None else parent_hash, tokens, block_bytes
            )
            self._name(blocks, root.namespace, hashes)
        return parent_hash, hashes
