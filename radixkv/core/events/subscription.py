"""One reader of a cache's events: a snapshot of the cached nodes, taken in slices, and then every change in order.

The trees change during the snapshot. Each block is reported once, by the walk or by its "stored" change. A stored block is
reported if the reader knows the block above, a removal if the reader knows the block. Blocks before the walk's position are
known, and the walk reaches the rest, so at the end the reader knows exactly the cached blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Literal

from radixkv.core.api import CacheEvent
from radixkv.core.events.feed import MAX_EVENT_BLOCKS, EventFeed, FeedEntry, hint_events
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.change_log import NO_BLOCK
from radixkv.core.tree.hints import HintChange
from radixkv.core.tree.roots import RootNode
from radixkv.core.tree.walk import TreeWalk

__all__ = ["SLICE_COST", "EventSubscription"]

SLICE_COST = 512
"""Blocks that one `take` visits, not counting those of the last node: about a millisecond."""

_NOTHING = array("i")
_NO_HASHES = array("Q")


class EventSubscription:
    """Made by `PrefixCache.subscribe_events`, and used on the thread that owns the cache.

    A reader that is too slow for the stored events gets a ``"reset"``, followed by a new snapshot.
    """

    def __init__(self, feed: EventFeed, start: int, namespace: str | None, enter: Callable[[], None]) -> None:
        self._feed = feed
        self._enter = enter
        self._namespace = namespace
        self._known: bytearray | None = None
        self._walk: TreeWalk | None = None
        self._hints: Iterator[HintChange] = iter(())  # of the snapshot, once the walk is done
        self._is_closed = False
        feed.num_subscribers += 1
        feed.drain(0)
        found = feed.find(start, namespace) if start else None
        self._life, self._next = feed.life, feed.next_number if found is None else found
        self._begins = found is None

    @property
    def is_synced(self) -> bool:
        """Whether the reader has taken a whole snapshot, and may miss only later changes."""
        return self._walk is None and not self._begins

    @property
    def has_fallen_behind(self) -> bool:
        """Whether the reader's next events are no longer stored: it restarts with a snapshot."""
        return self._life != self._feed.life or self._next < self._feed.first_number

    @property
    def next_number(self) -> int:
        """The sequence number of the next event, for the reader to resume with; 0 where it must restart with a snapshot."""
        if not self.is_synced or self.has_fallen_behind:
            return 0
        behind = self._feed.entries(self._next, self._feed.next_number - self._next)
        own = next((entry for entry in behind if self._sees(entry)), None)
        return self._feed.next_in(self._namespace) if own is None else self._number(own)

    def take(self, max_cost: int = SLICE_COST) -> list[CacheEvent]:
        """The next events; empty where nothing changed, or no change is for this reader. O(max_cost + last node).

        Call it again at once until `is_synced`, then after changes.

        Raises:
            WrongThreadError: another thread owns the cache.
        """
        self._enter()
        feed = self._feed
        is_drained = feed.drain(max_cost)
        events: list[CacheEvent] = []
        if self._begins or self.has_fallen_behind:
            feed.num_resets += not self._begins
            self._begin()
            events.append(self._mark("reset", 0))
        entries = feed.entries(self._next, max_cost)
        self._next += len(entries)
        events.extend(event for entry in entries if (event := self._seen(entry)) is not None)
        if self._walk is not None and is_drained and self._next == feed.next_number:
            for root, node in self._walk.advance(max_cost):
                events.extend(self._stored(root, node))
            if self._walk.is_done and (told := next(self._hints, None)) is not None:
                if self._namespace in (None, told.owner):
                    events.extend(hint_events(told))
            elif self._walk.is_done:
                self._walk = self._known = None
                feed.synced()
                events.append(self._mark("synced", feed.next_in(self._namespace) - 1))
        feed.num_sent += len(events)
        return events

    @property
    def is_current(self) -> bool:
        """Whether it is synced and no event is left to be taken."""
        return (
            self.is_synced
            and not self.has_fallen_behind
            and self._feed.drain(0)
            and self._next == self._feed.next_number
        )

    def close(self) -> None:
        """End the subscription. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._feed.num_subscribers -= 1

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._begins = False
        self._life, self._next = self._feed.life, self._feed.next_number
        self._walk = TreeWalk(self._feed.forest, None if self._namespace is None else [self._namespace])
        self._known = bytearray(self._feed.forest.pool.num_blocks)
        self._hints = self._feed.forest.hints.slices(MAX_EVENT_BLOCKS)

    def _mark(self, kind: Literal["reset", "synced"], number: int) -> CacheEvent:
        return CacheEvent(number, kind, self._namespace or "", 0, b"", _NOTHING, _NO_HASHES, None)

    def _sees(self, entry: FeedEntry) -> bool:
        return self._namespace is None or entry.event.namespace == self._namespace

    def _number(self, entry: FeedEntry) -> int:
        return entry.event.sequence_number if self._namespace is None else entry.namespace_number

    def _seen(self, entry: FeedEntry) -> CacheEvent | None:
        """The event as this reader gets it, or None."""
        if not self._sees(entry):
            return None
        event = entry.event
        if self._known is not None and event.tier != "device":
            return event._replace(sequence_number=0)
        if self._known is None:
            return event if self._namespace is None else event._replace(sequence_number=entry.namespace_number)
        if event.kind == "stored":
            if entry.parent_block != NO_BLOCK and not self._known[entry.parent_block]:
                return None
            for block in event.block_ids:
                self._known[block] = 1
        elif event.kind == "removed":
            return self._removed_of_known(event, self._known)
        return event._replace(sequence_number=0)

    def _removed_of_known(self, event: CacheEvent, known: bytearray) -> CacheEvent | None:
        """A removal of those blocks that the reader knows. They are contiguous: the known part of a node begins at its
        start.
        """
        told = [index for index, block in enumerate(event.block_ids) if known[block]]
        if not told:
            return None
        first, end = told[0], told[-1] + 1
        for block in event.block_ids:
            known[block] = 0
        return event._replace(
            sequence_number=0,
            position=event.position + first * self._feed.forest.block_size,
            block_ids=event.block_ids[first:end],
            block_hashes=event.block_hashes[first:end],
        )

    def _stored(self, root: RootNode, node: Node) -> list[CacheEvent]:
        """Events for the blocks of a node that the reader does not know yet."""
        known, forest = self._known, self._feed.forest
        assert known is not None, "a walk is under way"
        if len(node.key) < forest.block_bytes:
            return []
        first = next((index for index, block in enumerate(node.blocks) if not known[block]), len(node.blocks))
        events = []
        while first < len(node.blocks):
            end = min(first + MAX_EVENT_BLOCKS, len(node.blocks))
            parent_hash, hashes = self._feed.node_hashes(root, node, first, end)
            tokens = bytes(node.key[first * forest.block_bytes : end * forest.block_bytes])
            position = node.start_bytes // TOKEN_BYTES + first * forest.block_size
            blocks = node.blocks[first:end]
            events.append(CacheEvent(0, "stored", root.namespace, position, tokens, blocks, hashes, parent_hash))
            for block in blocks:
                known[block] = 1
            first = end
        return events
