"""The pools of the gateway's services as its pages see them: calls to all of them, and an observer of each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from radixkv.client import Credentials, RemoteReader
from radixkv.core.errors import RadixKVError
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.backend.pools import ASK_S, Answers, CachePools, PoolName
from radixkv.gateway.pages.cache_view.nodes import ViewNode
from radixkv.gateway.pages.cache_view.observer import CacheObserver
from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import own_work

__all__ = ["CacheView", "Seen"]

LOOK_S = 5.0
"""How often pools that came or went are looked for."""

_NUM_THREADS, _ONE_NAMESPACES_THREADS = 8, 2
_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Seen(NamedTuple):
    """A node, and the observer of its pool."""

    observer: CacheObserver
    node: ViewNode


class CacheView:
    """All pools of the gateway's cache services, from `start` to `close` on one event loop.

    Attributes:
        pools: makes calls to all of them.
        observers: by the pool's key; at least one. A pool whose service is silent keeps its own.
        run_id: identifies this life of the node ids, which are unique over all pools.

    Args:
        pools: the pools.
        first: shown while none is known.
        backend: reports the workers' speed.
        credentials: for the services; None: none.
    """

    def __init__(
        self, pools: CachePools, first: PoolName, backend: Backend, *, credentials: Credentials | None = None
    ) -> None:
        self.pools = pools
        self.run_id = secrets.token_hex(4)
        self._make = partial(CacheObserver, backend=backend, credentials=credentials, ids=itertools.count(1))
        self.observers: dict[str, CacheObserver] = {first.key: self._make(first)}
        self._calls = Calls(_NUM_THREADS, _ONE_NAMESPACES_THREADS)
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start observing. Call on the loop."""
        for observer in self.observers.values():
            observer.start()
        if not self.pools.is_one:
            with own_work():
                self._looking = asyncio.create_task(self._look(), name="radixkv-cache-pools")

    async def ask(self, call: Callable[[RemoteReader], _Result], timeout_s: float = ASK_S) -> Answers[_Result]:
        """Return the answers of all pools to a call; see `CachePools.ask`."""
        return await self.run(partial(self.pools.ask, call, timeout_s))

    async def ask_pool(self, pool: PoolName, call: Callable[[RemoteReader], _Result]) -> _Result:
        """Return the answer of one pool; see `CachePools.ask_pool`."""
        return await self.run(partial(self.pools.ask_pool, pool, call))

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Run a slow function on one of the threads that the caller's namespace may have."""
        return await self._calls.call(function)

    def observer(self, key: str = "") -> CacheObserver | None:
        """Return the observer of a pool, without a key the first; None: there is no such pool."""
        return self.observers.get(key) if key else next(iter(self.observers.values()))

    def find(self, view_id: int) -> Seen | None:
        """Return a node of any pool. O(pools)."""
        for observer in self.observers.values():
            node = observer.state.nodes.get(view_id)
            if node is not None:
                return Seen(observer, node)
        return None

    def hurry(self) -> None:
        """List the trees as soon as possible: a request has changed them."""
        for observer in self.observers.values():
            observer.hurry()

    def close(self) -> None:
        """Stop observing. Call on the loop."""
        if self._looking is not None:
            self._looking.cancel()
        for observer in self.observers.values():
            observer.close()
        self._calls.close()
        self.pools.close()

    async def _look(self) -> None:
        while True:
            try:
                self._meet(await self.ask(lambda _: None))
            except RadixKVError as error:
                _LOG.debug("the pools are not known now: %s", error)
            await asyncio.sleep(LOOK_S)

    def _meet(self, answers: Answers[None]) -> None:
        """Observe these pools, and no longer those that their services do not have, unless a page shows them."""
        if not answers.by_pool:
            return
        known = {observer.pool: observer for observer in self.observers.values()}
        for pool in answers.by_pool:
            if pool not in known:
                known[pool] = self._make(pool)
                known[pool].start()
        for pool in list(known):
            if pool not in answers.by_pool and pool.service not in answers.silent and not known[pool].is_watched:
                known.pop(pool).close()
        self.observers = {pool.key: known[pool] for pool in sorted(known)}
