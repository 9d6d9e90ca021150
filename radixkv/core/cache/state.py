"""The state of a cache, shared by the mixins that `PrefixCache` is composed of."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

from radixkv.core import validation
from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError, WrongThreadError
from radixkv.core.events.feed import EventFeed
from radixkv.core.eviction import DEFAULT_POLICY, PolicyFactory, policy_factory
from radixkv.core.inspect.counters import Counters
from radixkv.core.sequences.held_times import HeldTimes
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.sequences.single_flight import MAX_WAITS, SingleFlight
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.block_pool import BlockPool, FollowedPool
from radixkv.core.tree.block_records import BlockRecords, Playback
from radixkv.core.tree.change_log import EventLog
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.pins import PinBook
from radixkv.core.tree.roots import RootNode

__all__ = ["MAX_EVENT_NUMBER", "CacheState"]

MAX_EVENT_NUMBER = (1 << 62) - 1


class CacheState:
    """All that a `PrefixCache` holds; the constructor's arguments are described there."""

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
        follows_freed: bool = False,
        record_key: int | None = None,
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
        pool = (
            FollowedPool(num_blocks) if validation.check_flag("follows_freed", follows_freed) else BlockPool(num_blocks)
        )
        block_bytes, records = block_size * TOKEN_BYTES, None
        if record_key is not None:
            validation.check_int("record_key", record_key, 0, 2**64 - 1)
            records = BlockRecords(num_blocks, block_bytes, record_key)
        self._forest = Forest(pool, block_size, make_policy, clock, log, records)
        self._playback = Playback(block_bytes)
        self.journal = self._forest.journal
        self._feed = EventFeed(self._forest, log, event_capacity, first_event_number)
        self._pins = PinBook(self._forest, pin_budget)
        self._sequences: dict[int, Sequence] = {}
        self._cleared: dict[str, RootNode | None] = {}  # while adoptions may come; where their sequences stand
        self._adopted = self._played_last = (DEFAULT_NAMESPACE, b"")  # the history adopted last, and last by record
        self._seq_ids = itertools.count(1) if seq_ids is None else seq_ids
        self._owner_thread: int | None = None
        self._counters = Counters()
        self._held_times = HeldTimes()
        self._single_flight = SingleFlight(block_size, max_waits)

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
