"""The state of a cache, and the calls that only read it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
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
)
from radixkv.core.errors import InvalidArgumentError, WrongThreadError
from radixkv.core.events.feed import EventFeed
from radixkv.core.events.subscription import EventSubscription
from radixkv.core.eviction import DEFAULT_POLICY, PolicyFactory, policy_factory
from radixkv.core.inspect import check as checking
from radixkv.core.inspect.audit import Audit
from radixkv.core.inspect.counters import Counters
from radixkv.core.inspect.explain import explain
from radixkv.core.inspect.listing import TreeListing
from radixkv.core.nodes.node import RootNode
from radixkv.core.nodes.sequence import Sequence
from radixkv.core.sequences.single_flight import MAX_WAITS, SingleFlight
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.core.tree import quotas
from radixkv.core.tree.change_log import EventLog
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.pins import PinBook

__all__ = ["LocalReader"]

MAX_EVENT_NUMBER = (1 << 62) - 1


class LocalReader:
    """The state of a `PrefixCache` and its pure reads; the constructor's arguments are described there."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        eviction: str | PolicyFactory = DEFAULT_POLICY,
        event_capacity: int = 16_384,
        first_event_number: int = 1,
        max_waits: int = MAX_WAITS,
        pin_budget: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        seq_ids: Iterator[int] | None = None,
    ) -> None:
        validation.check_pool_shape(num_blocks, block_size)
        validation.check_int("event_capacity", event_capacity, 1)
        validation.check_int("first_event_number", first_event_number, 1, MAX_EVENT_NUMBER)
        validation.check_int("max_waits", max_waits, 0)
        if pin_budget is not None and not (isinstance(pin_budget, int | float) and pin_budget >= 0):
            raise InvalidArgumentError("pin_budget", pin_budget, "at least 0 block-seconds")
        if not isinstance(eviction, str) and not callable(eviction):
            raise InvalidArgumentError("eviction", eviction, "the name of a policy, or what makes one")
        if not callable(clock):
            raise InvalidArgumentError("clock", clock, "a function that tells seconds")
        if seq_ids is not None and not isinstance(seq_ids, Iterator):
            raise InvalidArgumentError("seq_ids", seq_ids, "an iterator of ids")
        make_policy = policy_factory(eviction) if isinstance(eviction, str) else eviction
        log = EventLog(event_capacity)
        self._forest = Forest(num_blocks, block_size, make_policy, clock, log)
        self.journal = self._forest.journal
        self._feed = EventFeed(self._forest, log, event_capacity, first_event_number)
        self._pins = PinBook(self._forest, pin_budget)
        self._sequences: dict[int, Sequence] = {}
        self._cleared: dict[str, RootNode | None] = {}  # while adoptions may come; where their sequences stand
        self._seq_ids = itertools.count(1) if seq_ids is None else seq_ids
        self._owner_thread: int | None = None
        self._counters = Counters()
        self._single_flight = SingleFlight(block_size, max_waits)

    def match(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult:
        """The longest cached prefix of `tokens`, exact to the token. A pure read: it splits and stamps nothing.

        O(prefix bytes): one compare per node, and one look-up among siblings where the histories part.

        Raises:
            InvalidArgumentError: tokens that cannot be packed, or a bad namespace.
        """
        self._enter()
        packed = pack_tokens(tokens)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        matched = 0 if root is None else self._forest.walk(root, packed).matched_bytes // TOKEN_BYTES
        return MatchResult(matched, matched)

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
        return self._pins.infos(self._roots_of(namespace))

    def usage(self, namespace: str | None = None) -> list[NamespaceUsage]:
        """The pool usage of one namespace, or of all that hold something or have a quota, by name. Derived namespaces, for an
        adapter or a salt, count as their owner's.

        O(n log n) in the namespaces, O(1) for one.
        """
        self._enter()
        if namespace is not None:
            return [quotas.usage_of(self._forest, validation.check_namespace(namespace))]
        return [quotas.usage_of(self._forest, name) for name in sorted(self._forest.accounts)]

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

    def _roots_of(self, namespace: str | None) -> list[RootNode]:
        if namespace is not None:
            validation.check_namespace(namespace)
            return self._forest.roots_of(namespace)
        return list(self._forest.roots.values())

    def _enter(self) -> None:
        """Begin a call: check its thread, and end the expired pins and retentions."""
        thread = threading.get_ident()
        if thread != self._owner_thread:
            if self._owner_thread is not None:
                raise WrongThreadError("this cache is owned by another thread; post the call to that thread's queue")
            self._owner_thread = thread
        if self._pins.num_pins:
            self._pins.drop_expired()
        if self._forest.retentions.entries:
            self._forest.end_retentions()
