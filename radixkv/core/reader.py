"""What a cache holds, and the calls that only read it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

from radixkv.core import checking, validation
from radixkv.core.api import DEFAULT_NAMESPACE, BlockTimes, CacheEvent, CacheStats, MatchResult, NodeInfo
from radixkv.core.errors import WrongThreadError
from radixkv.core.events import EventLog
from radixkv.core.eviction import EvictionPolicy, LRUPolicy
from radixkv.core.forest import Forest
from radixkv.core.intents import MAX_WAITS, Intents
from radixkv.core.sequences import Sequence
from radixkv.core.stats import Counters
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens

__all__ = ["LocalReader"]


class LocalReader:
    """The state of a `PrefixCache` and its pure reads; the arguments are described there."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        policy: EvictionPolicy | None = None,
        event_capacity: int = 256,
        max_waits: int = MAX_WAITS,
        clock: Callable[[], float] = time.monotonic,
        seq_ids: Iterator[int] | None = None,
    ) -> None:
        validation.check_pool_shape(num_blocks, block_size)
        validation.check_int("event_capacity", event_capacity, 0)
        validation.check_int("max_waits", max_waits, 0)
        self._events = EventLog(event_capacity)
        self._forest = Forest(num_blocks, block_size, policy or LRUPolicy(), clock, self._events)
        self._sequences: dict[int, Sequence] = {}
        self._seq_ids = itertools.count(1) if seq_ids is None else seq_ids
        self._owner_thread: int | None = None
        self._counters = Counters()
        self._intents = Intents(block_size, max_waits)

    def match(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> MatchResult:
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

    def stats(self) -> CacheStats:
        """Gauges of now and counters since the cache was made. O(1)."""
        self._enter()
        return self._counters.snapshot(self._forest, len(self._sequences), self._intents)

    def block_times(self) -> BlockTimes:
        """How long blocks lived, lay idle and waited to be used again, since the cache was made. O(1)."""
        self._enter()
        return self._forest.times.snapshot()

    def events(self, start: int = 0, namespace: str | None = None) -> list[CacheEvent]:
        """The recorded events with a sequence number >= `start`, oldest first. O(events kept).

        Whole blocks only: a tail is announced when it is full.
        """
        self._enter()
        return self._events.since(start, None if namespace is None else validation.check_namespace(namespace))

    def dump(self, namespace: str | None = None) -> list[NodeInfo]:
        """Every node that may be matched, parents before children, of one namespace or of all. O(nodes + tokens)."""
        self._enter()
        if namespace is not None:
            validation.check_namespace(namespace)
        roots = [root for name, root in self._forest.roots.items() if namespace in (None, name)]
        return checking.dump_roots(self._forest, roots)

    def check(self) -> None:
        """Verify every invariant of the tree, the pool and the sequences. O(everything held).

        Raises:
            CorruptionError: an invariant is broken, which is a bug here; the message says which.
        """
        self._enter()
        checking.check_all(self._forest, self._sequences, self._intents)

    def _enter(self) -> None:
        thread = threading.get_ident()
        if thread != self._owner_thread:
            if self._owner_thread is not None:
                raise WrongThreadError("this cache is owned by another thread; post the call to that thread's queue")
            self._owner_thread = thread
