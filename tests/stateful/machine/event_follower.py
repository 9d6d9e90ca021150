"""Routers that follow a cache by its events alone, and what they must believe of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from radixkv.core.api import CacheEvent, CacheHolder
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.events.subscription import EventSubscription

from ..oracle.snapshot import Snapshot

__all__ = ["EventFollower", "Followers"]


class _Held(NamedTuple):
    """What a follower knows of a block."""

    namespace: str
    position: int
    tokens: bytes
    block_hash: int


class EventFollower:
    """Folds events as a router would: which block holds which tokens at which position of which namespace."""

    def __init__(self, block_size: int, namespace: str | None = None) -> None:
        self.block_size = block_size
        self.namespace = namespace
        self.next_number = 0
        self.is_synced = False
        self._held: dict[int, _Held] = {}

    def follow(self, events: Iterable[CacheEvent]) -> None:
        """Asserts that they are in order, name what is known, and are all of its namespace."""
        for event in events:
            assert event.namespace == self.namespace or self.namespace is None, f"{event} is none of {self.namespace}"
            if event.kind == "reset":
                self._held.clear()
                self.is_synced = False
            elif event.kind == "synced":
                assert not self.is_synced, f"{event} came twice"
                self.is_synced = True
                self.next_number = event.sequence_number + 1
            elif self.is_synced:
                assert event.sequence_number == self.next_number, f"{event} came at {self.next_number}"
                self.next_number += 1
                self._apply(event)
            else:
                assert event.sequence_number == 0, f"{event} came in a snapshot"
                self._apply(event)

    def _apply(self, event: CacheEvent) -> None:
        if event.kind == "cleared":
            assert all(held.namespace != event.namespace for held in self._held.values()), (
                "what was cleared was removed"
            )
            return
        assert len(event.block_hashes) == len(event.block_ids) > 0, f"{event}"
        if event.kind == "removed":
            for index, block in enumerate(event.block_ids):
                held = self._held.pop(block, None)
                position = event.position + self.block_size * index
                assert held is not None, f"{event}: block {block} was not stored"
                expected = (event.namespace, position, event.block_hashes[index])
                assert (held.namespace, held.position, held.block_hash) == expected, f"{event}: {held}"
            return
        assert event.kind == "stored"
        size = 4 * self.block_size
        assert len(event.tokens) == size * len(event.block_ids), f"{event}"
        above = {held.block_hash for held in self._held.values() if held.namespace == event.namespace}
        assert (event.parent_hash is None) == (event.position == 0), f"{event}"
        assert event.parent_hash is None or event.parent_hash in above, f"{event}: nobody was told of its parent"
        for index, block in enumerate(event.block_ids):
            assert block not in self._held, f"{event}: block {block} is held already"
            tokens = event.tokens[size * index : size * (index + 1)]
            position = event.position + self.block_size * index
            self._held[block] = _Held(event.namespace, position, tokens, event.block_hashes[index])

    def check(self, snapshot: Snapshot) -> None:
        """Assert that it believes cached just the whole blocks that are, each under the hash of its history."""
        size = self.block_size
        expected: dict[int, _Held] = {}
        for path in snapshot.paths.values():
            node = path.node
            if node.is_tail or node.namespace != (self.namespace or node.namespace):
                continue
            packed = b"".join(token.to_bytes(4, "little") for token in path.tokens)
            hashes = _chain(node.namespace, packed, 4 * size)
            for index, block in enumerate(node.block_ids):
                start = node.position + size * index
                tokens = packed[4 * start : 4 * (start + size)]
                expected[block] = _Held(node.namespace, start, tokens, hashes[start // size])
        assert self._held == expected, "the events tell of other blocks than the dump"


def _chain(namespace: str, packed: bytes, block_bytes: int) -> list[int]:
    """The documented chain of hashes, written out."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=8, person=b"radixkv").digest()
    hashes = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        digest = hashlib.blake2b(digest + packed[start : start + block_bytes], digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return hashes


class Followers:
    """Several routers of one cache: one polls, one sees a single namespace; in process one more takes what there is in the
    smallest slices, so that its snapshots are taken while the trees change, and begins anew now and then.
    """

    def __init__(self, holder: CacheHolder, block_size: int) -> None:
        self._holder = holder
        self._block_size = block_size
        self._all = EventFollower(block_size)
        self._one = EventFollower(block_size, "default")
        self._slow: tuple[EventSubscription, EventFollower] | None = None
        self._num_steps = 0

    def check(self, snapshot: Snapshot) -> None:
        """Take what there is; assert what each must believe now."""
        for follower in (self._all, self._one):
            follower.follow(self._holder.events(follower.next_number, follower.namespace))
            assert follower.is_synced
            follower.check(snapshot)
        self._num_steps += 1
        if isinstance(self._holder, PrefixCache):
            self._take_a_slice(self._holder, snapshot)

    def _take_a_slice(self, cache: PrefixCache, snapshot: Snapshot) -> None:
        if self._slow is None:
            namespace = None if self._num_steps % 2 else "default"
            self._slow = cache.subscribe_events(0, namespace), EventFollower(self._block_size, namespace)
        subscription, follower = self._slow
        follower.follow(subscription.take(1))
        if subscription.is_current:
            follower.check(snapshot)
            assert follower.next_number == subscription.next_number
            if self._num_steps % 3 == 0:
                subscription.close()
                self._slow = None
