"""A router that follows the events of a pool through every fault, and what it must believe once all is quiet."""

from __future__ import annotations

from typing import Any

from radixkv.core.api import PoolShape
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import RadixKVError
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.wire.reads import EVENT
from tests.stateful.machine.event_follower import EventFollower
from tests.stateful.oracle.snapshot import read_snapshot

from ..clock import Process, Simulator
from ..network import End, Network
from .reader_calls import ReaderCall

__all__ = ["Router"]


class Router:
    """Follows one pool, or one namespace of it, and comes back with the number that it wants next.

    Args:
        namespace: the only one it wants to hear of; None: all.
    """

    def __init__(
        self, simulator: Simulator, network: Network, name: str, shape: PoolShape, namespace: str | None
    ) -> None:
        self.process = Process(name)
        self.process.start()
        self.pool_name = shape.name
        self._simulator = simulator
        self._network = network
        self._namespace = namespace
        self._believes = EventFollower(shape.block_size, namespace)
        self._stream: End | None = None
        self._was_synced = False

    def start(self) -> None:
        """Follow, and do so again whenever the stream has ended."""
        self._was_synced = self._believes.is_synced
        start = self._believes.next_number if self._was_synced else 0
        request = readers.EventsRequest(pool=self.pool_name, follow=True, start=start)
        if self._namespace is not None:
            request.namespace = self._namespace
        self._stream = self._network.connect(self.process, "service", self._told, self._ended)
        self._stream.send(ReaderCall("Events", request))

    @property
    def is_following(self) -> bool:
        """Whether it has a stream and has been told of everything up to some moment."""
        return self._stream is not None and self._stream.is_open and self._believes.is_synced

    def check(self, cache: PrefixCache) -> None:
        """Assert that it believes cached what is."""
        self._believes.check(read_snapshot(cache))

    def _told(self, answer: Any) -> None:
        if not isinstance(answer, readers.EventsResponse):
            return  # what the call has ended with
        events = list(map(EVENT.read, answer.events))
        if self._was_synced:
            self._simulator.count("events anew" if events[0].kind == "reset" else "events resumed")
            self._was_synced = False
        self._simulator.note(f"{self.process.name}: is told", *(event.kind for event in events))
        self._believes.follow(events)

    def _ended(self, _error: RadixKVError) -> None:
        self._simulator.after(self._simulator.rng.uniform(0.01, 0.05), self.process, None, self.start)
