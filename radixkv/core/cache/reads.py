"""The calls that only read a cache."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from radixkv.core import validation
from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    BlockTimes,
    CacheEvent,
    CacheStats,
    EventStats,
    Explanation,
    MatchResult,
    NamespaceUsage,
    NodeInfo,
    PinInfo,
    PoolRoute,
    WorkerReport,
)
from radixkv.core.cache.state import MAX_EVENT_NUMBER, CacheState
from radixkv.core.events.subscription import EventSubscription
from radixkv.core.inspect import check as checking
from radixkv.core.inspect.audit import Audit
from radixkv.core.inspect.below import count_below
from radixkv.core.inspect.explain import explain
from radixkv.core.inspect.listing import TreeListing
from radixkv.core.namespaces import owner_of
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.core.tree import quotas

__all__ = ["Reads"]

_NO_REPORT = WorkerReport()


class Reads(CacheState):
    """The pure reads of a `PrefixCache`."""

    def match(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult:
        """The longest cached prefix of `tokens`, exact to the token. A pure read: it splits and stamps nothing.

        O(prefix bytes): one compare per node, and one look-up among siblings where the histories part; with hints of its
        owner also a hash per block of the prompt.

        Raises:
            InvalidArgumentError: tokens that cannot be packed, or a bad namespace.
        """
        packed = pack_tokens(tokens)
        matched = self.match_device(packed, namespace=namespace).num_tokens
        return MatchResult(matched, matched, *count_below(self._forest, namespace, packed, matched))

    def match_device(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult:
        """`match` without hints, as of a Step: the holder knows what lies below its pool."""
        self._enter()
        packed = pack_tokens(tokens)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        matched = 0 if root is None else self._forest.walk(root, packed).matched_bytes // TOKEN_BYTES
        return MatchResult(matched, matched)

    def route(
        self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE, worker: WorkerReport = _NO_REPORT
    ) -> PoolRoute:
        """`match` for a router, the prefix that an open sequence is about to publish, and the room for the rest. A pure read.

        That of `match` and O(log intents) compares. Sequences are followed from the first `acquire_or_wait` on. `worker`: the
        report of its holder, which the answer carries.

        Raises:
            InvalidArgumentError: tokens that cannot be packed, or a bad namespace.
        """
        packed, forest = pack_tokens(tokens), self._forest
        num_matched = self.match_device(packed, namespace=namespace).num_tokens
        partition = forest.find_account(owner_of(namespace)).partition
        num_left = min(partition.num_blocks - partition.num_in_use, forest.num_available)
        return PoolRoute(
            num_matched,
            self._single_flight.foresee(namespace, packed),
            worker,
            num_stored_tokens=sum(count_below(forest, namespace, packed, num_matched)),
            num_room_tokens=max(0, num_left) * forest.block_size,
            num_used_tokens=partition.num_in_use * forest.block_size,
            held_s=self._held_times.mean_s,
        )

    def explain(
        self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE, other_namespaces: SequenceOf[str] = ()
    ) -> Explanation:
        """Where a prompt parts from the cached histories, and why: see `Explanation`. A pure read.

        `other_namespaces` names those to compare with, such as those of another salt, adapter or model. The answer reports
        nothing of namespaces not named. Call it before the prompt is acquired: it is cached once it is computed.
        O(prefix bytes of each namespace + siblings there + evicted edges that agree).

        Raises:
            InvalidArgumentError: tokens that cannot be packed, a bad namespace, or too many others.
        """
        self._enter()
        packed = pack_tokens(tokens)
        validation.check_namespace(namespace)
        return explain(self._forest, namespace, packed, validation.check_other_namespaces(other_namespaces))

    def stats(self) -> CacheStats:
        """Current gauges, and counters since the cache was made. O(1)."""
        self._enter()
        return self._counters.snapshot(self._forest, len(self._sequences), self._single_flight, self._pins)

    def pins(self, namespace: str | None = None) -> list[PinInfo]:
        """The pins of a namespace and those derived of it, or of all namespaces, the oldest of each first.

        O(namespaces + tokens pinned).
        """
        self._enter()
        if namespace is None:
            return self._pins.infos(self._forest.roots.values())
        return self._pins.infos(self._forest.roots_of(validation.check_namespace(namespace)))

    def usage(self, namespace: str | None = None) -> list[NamespaceUsage]:
        """The pool usage of one namespace, or of all that hold something or have a quota, by name. Derived namespaces, for an
        adapter or a salt, count as their owner's.

        O(n log n) in the namespaces, O(1) for one.
        """
        self._enter()
        if namespace is not None:
            return [quotas.usage_of(self._forest, validation.check_namespace(namespace))]
        names = self._forest.accounts.keys() | self._forest.hints.owners()
        return [quotas.usage_of(self._forest, name) for name in sorted(names)]

    def block_times(self) -> BlockTimes:
        """How long blocks lived, lay idle and waited to be used again, since the cache was made. O(1)."""
        self._enter()
        return self._forest.times.snapshot()

    def events(self, start: int = 0, namespace: str | None = None) -> list[CacheEvent]:
        """The events with a sequence number >= `start`, oldest first, up to now; of one namespace or of all.

        With `start` 0, or a number whose events are no longer kept: a ``"reset"``, the cached nodes as ``"stored"`` events, and
        a ``"synced"``. Resume with the last sequence number + 1. Changes are recorded from the first call on and until
        `event_capacity` of them have waited for a reader. O(events), with a snapshot O(blocks cached).

            number = 0
            while following:
                for event in cache.events(number):
                    number = event.sequence_number + 1
                    ...

        Raises:
            InvalidArgumentError: a negative start, a bad namespace.
        """
        subscription = self.subscribe_events(start, namespace)
        events = subscription.take()
        while not subscription.is_current:
            events.extend(subscription.take())
        subscription.close()
        return events

    def subscribe_events(self, start: int = 0, namespace: str | None = None) -> EventSubscription:
        """The same events for a lasting reader, in slices of about a millisecond; see `EventSubscription`. O(events kept).

        Raises:
            InvalidArgumentError: a negative start, a bad namespace.
        """
        self._enter()
        validation.check_int("start", start, 0, MAX_EVENT_NUMBER)
        if namespace is not None:
            validation.check_namespace(namespace)
        return EventSubscription(self._feed, start, namespace, self._enter)

    def event_stats(self) -> EventStats:
        """Counts of event subscribers, and of the events sent to them. O(1)."""
        self._enter()
        feed = self._feed
        return EventStats(feed.num_subscribers, feed.num_sent, feed.num_resets)

    def dump(self, namespace: str | None = None) -> list[NodeInfo]:
        """Every node that can be matched, parents before children, of one namespace or of all. O(nodes + tokens)."""
        return self.list_nodes(namespace).take(None)

    def list_nodes(self, namespace: str | None = None) -> TreeListing:
        """The same nodes in slices of about a millisecond, for a shared thread; see `TreeListing`. O(namespaces).

        Raises:
            InvalidArgumentError: a bad namespace.
        """
        self._enter()
        if namespace is not None:
            validation.check_namespace(namespace)
        return TreeListing(self._forest, namespace, self._enter)

    def audit(self) -> Audit:
        """Most of `check` in slices of about a millisecond, for a shared thread; see `Audit`. O(sequences)."""
        self._enter()
        return Audit(self._forest, self._sequences, self._enter)

    def check(self) -> None:
        """Verify every invariant of the tree, the pool and the sequences. O(everything held).

        Raises:
            CorruptionError: an invariant is broken, which is a bug here; the message names it.
        """
        self._enter()
        checking.check_all(self._forest, self._sequences, self._single_flight, self._pins)
