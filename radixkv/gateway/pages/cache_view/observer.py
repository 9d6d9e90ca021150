"""Observes a pool for all viewers: its gauges always, its tree only while there is a viewer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from radixkv.client import Credentials, RemoteReader
from radixkv.core.api import NodeInfo
from radixkv.core.errors import RadixKVError, UnavailableError, UnknownPoolError
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.backend.pools import PoolName
from radixkv.gateway.pages.cache_view import gauges
from radixkv.gateway.pages.cache_view.departures import with_kinds
from radixkv.gateway.pages.cache_view.gauges import Gauges
from radixkv.gateway.pages.cache_view.nodes import Change, Departure, TreeState
from radixkv.gateway.pages.cache_view.removals import Removals
from radixkv.gateway.pages.cache_view.viewer import Viewer
from radixkv.generation.stats import WorkerStats
from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import own_work

__all__ = ["CacheObserver"]

MIN_PERIOD_S = 0.5
"""Shortest time between two listings of the tree."""

PERIOD_PER_COST = 20.0
"""Pause after a listing, in multiples of its duration: listings take at most a twentieth of the service's time."""

RETRY_S = 1.0
NUM_CHANGES = 64
"""Versions whose differences are kept for viewers."""

_NUM_THREADS, _ONE_NAMESPACES_THREADS = 8, 2
_Result = TypeVar("_Result")


class _Listing(NamedTuple):
    """`num_evicted`: blocks evicted before it; `took_s`: its duration in the service."""

    num_evicted: int
    now_s: float
    nodes: Sequence[NodeInfo]
    took_s: float


class CacheObserver:
    """One pool of a cache service, observed from `start` to `close` on one event loop.

    Attributes:
        state: the latest listing of the tree.
        gauges: the pool's numbers of the last minutes.
        status: for viewers: whether the service responds, or its error.

    Args:
        pool: its service and its name there.
        backend: reports the worker's speed.
        credentials: for the service; None: none.
        ids: ids of nodes, from 1; None: its own.
    """

    def __init__(
        self,
        pool: PoolName,
        backend: Backend,
        *,
        credentials: Credentials | None = None,
        ids: Iterator[int] | None = None,
    ) -> None:
        self.pool = pool
        self.state = TreeState()
        self.gauges = Gauges()
        self.status: dict[str, Any] = {"state": "waiting", "message": ""}
        self._backend = backend
        self._worker: WorkerStats | None = None
        self._ids = ids or itertools.count(1)
        self._changes: deque[Change] = deque(maxlen=NUM_CHANGES)
        self._viewers: set[Viewer] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._removals: Removals | None = None
        self._reader: RemoteReader | None = None
        self._open_reader = partial(RemoteReader, *pool, credentials=credentials)
        self._hurry = asyncio.Event()
        self._leaving: list[Departure] = []
        self._has_left = asyncio.Event()
        self._num_evicted = 0  # before the tree was listed last
        self._calls = Calls(_NUM_THREADS, _ONE_NAMESPACES_THREADS)

    def start(self) -> None:
        """Start observing. Call on the loop."""
        self._reader = self._open_reader()
        self._look()

    @property
    def is_watched(self) -> bool:
        """Whether there is a viewer."""
        return bool(self._viewers)

    @contextmanager
    def watch(self, sees: Callable[[str], bool]) -> Iterator[Viewer]:
        """Add a viewer of these namespaces."""
        viewer = Viewer(self, sees)
        self._viewers.add(viewer)
        if len(self._viewers) == 1:
            self._begin()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._end()

    async def ask(self, call: Callable[[RemoteReader], _Result]) -> _Result:
        """Return the service's answer to a call on a thread; raises what `RemoteReader` raises."""
        reader = self._reader
        if reader is None:
            raise UnavailableError("the server is stopping")
        return await self.run(partial(call, reader))

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Run a slow function on one of the threads that the caller's namespace may have."""
        return await self._calls.call(function)

    def publish(self, state: TreeState, change: Change) -> None:
        """Publish another listing and its difference to the viewers."""
        self.state = state
        self._changes.append(change)
        self._wake()

    def hurry(self) -> None:
        """List the tree as soon as possible: a request has changed it."""
        self._hurry.set()

    def changes_since(self, version: int) -> list[Change] | None:
        """Return the changes after a version; None where they are no longer known. O(changes)."""
        if not self._changes or version < self._changes[0].version - 1:
            return None
        return [change for change in self._changes if change.version > version]

    def close(self) -> None:
        """Stop observing. Call on the loop."""
        reader, self._reader = self._reader, None
        self._end()
        if reader is not None:
            reader.close()
        self._calls.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()

        def tell(block_ids: Sequence[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._removed, block_ids)

        self._removals = Removals(self._open_reader, tell)
        self._look()

    def _end(self) -> None:
        if self._removals is not None:
            self._removals.close()
            self._removals = None
        self._look()
        self._changes.clear()
        self.state = TreeState()  # frees the token ids while there is no viewer

    def _look(self) -> None:
        """Restart the loops that fit the presence of viewers."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        if self._reader is None:  # closed
            return
        period_s = gauges.PERIOD_S if self._viewers else gauges.UNSEEN_PERIOD_S
        looks = {"gauges": self._read_gauges(period_s), "worker": self._ask_worker(period_s)}
        if self._viewers:
            looks |= {"nodes": self._list_nodes(), "removals": self._tell_removals()}
        with own_work():
            self._tasks = [asyncio.create_task(look, name=f"radixkv-cache-{name}") for name, look in looks.items()]

    async def _list_nodes(self) -> None:
        while True:
            self._hurry.clear()
            wait_s = RETRY_S
            try:
                listed = await self.ask(self._list)
                state, change = await self.run(partial(self.state.advance, listed.now_s, listed.nodes, self._ids))
                if change.gone:
                    gone = await self._with_kinds(change.gone, self._num_evicted)
                    change = change._replace(gone=tuple(gone))
                self._num_evicted = listed.num_evicted
                self.publish(state, change)
            except (RadixKVError, ValueError) as error:
                self._tell_status(error)
            else:
                self._tell_status(None)
                wait_s = max(MIN_PERIOD_S, PERIOD_PER_COST * listed.took_s)
            self._wake()
            await asyncio.sleep(MIN_PERIOD_S)
            if wait_s > MIN_PERIOD_S:
                await self._wait_unless_hurried(wait_s - MIN_PERIOD_S)

    def _list(self, reader: RemoteReader) -> _Listing:
        num_evicted, began_s = reader.stats().num_evicted_blocks, time.monotonic()
        now_s, nodes = reader.dump_at()
        return _Listing(num_evicted, now_s, nodes, time.monotonic() - began_s)

    async def _wait_unless_hurried(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation
                await self._hurry.wait()

    async def _read_gauges(self, period_s: float) -> None:
        while True:
            try:
                stats = await self.ask(lambda reader: reader.stats())
                self.gauges.add(time.time(), stats, self._worker)
            except (RadixKVError, ValueError) as error:
                self._tell_status(error)
            self._wake()
            await asyncio.sleep(period_s)

    async def _ask_worker(self, period_s: float) -> None:
        """Separate from the cache, which also answers during a long step of the worker."""
        while True:
            self._worker = await self._backend.stats()
            await asyncio.sleep(period_s)

    def _removed(self, block_ids: Sequence[int]) -> None:
        self._leaving += map(Departure, self.state.starting_at(block_ids))
        self._has_left.set()

    async def _tell_removals(self) -> None:
        """Announce whole blocks that left: events arrive before the next listing."""
        while True:
            await self._has_left.wait()
            self._has_left.clear()
            leaving = [departure for departure in self._leaving if departure.node.view_id in self.state.nodes]
            self._leaving.clear()
            with suppress(RadixKVError, ValueError):  # the next listing shows the same
                gone = await self._with_kinds(leaving)
                for viewer in self._viewers:
                    viewer.left(gone)
            self._wake()

    async def _with_kinds(self, gone: Sequence[Departure], num_evicted: int | None = None) -> list[Departure]:
        history = self.state.history
        return await self.ask(lambda reader: with_kinds(reader, gone, history, num_evicted))

    def _tell_status(self, error: Exception | None) -> None:
        if error is None:
            self.status = {"state": "live", "message": ""}
        elif isinstance(error, UnknownPoolError):
            self.status = {"state": "no-pool", "message": f"no worker holds the pool {self.pool.pool!r} now"}
        else:
            self.status = {"state": "lost", "message": "the cache service does not answer"}

    def _wake(self) -> None:
        for viewer in self._viewers:
            viewer.wake()
