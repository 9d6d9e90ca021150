"""The façade of `PrefixCache` over gRPC: `connect` to a service, as the holder of a pool or as a reader."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import overload

from radixkv.client.holder import RemoteHolder
from radixkv.client.reader import RemoteReader
from radixkv.core.api import PoolShape, WorkerLoad
from radixkv.core.errors import InvalidArgumentError, PoolHeldError
from radixkv.core.tree.journal import JournalEntry
from radixkv.net.channel import Credentials

__all__ = ["Credentials", "RemoteHolder", "RemoteReader", "connect"]

_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 0.02, 0.5


@overload
def connect(
    address: str,
    pool: None = None,
    *,
    pool_name: str = ...,
    timeout_s: float = ...,
    credentials: Credentials | None = ...,
) -> RemoteReader: ...


@overload
def connect(
    address: str,
    pool: PoolShape,
    *,
    incarnation: int | None = ...,
    holder_name: str = ...,
    timeout_s: float = ...,
    wait_s: float = ...,
    on_notices: Callable[[], None] | None = ...,
    on_restart: Callable[[], None] | None = ...,
    on_freed: Callable[[array[int]], None] | None = ...,
    on_journal: Callable[[Sequence[JournalEntry]], Sequence[Future[None]] | None] | None = ...,
    load: Callable[[], WorkerLoad] | None = ...,
    patience_s: float | None = ...,
    credentials: Credentials | None = ...,
) -> RemoteHolder: ...


def connect(
    address: str,
    pool: PoolShape | None = None,
    *,
    pool_name: str = "default",
    incarnation: int | None = None,
    holder_name: str = "",
    timeout_s: float = 10.0,
    wait_s: float = 0.0,
    on_notices: Callable[[], None] | None = None,
    on_restart: Callable[[], None] | None = None,
    on_freed: Callable[[array[int]], None] | None = None,
    on_journal: Callable[[Sequence[JournalEntry]], Sequence[Future[None]] | None] | None = None,
    load: Callable[[], WorkerLoad] | None = None,
    patience_s: float | None = None,
    credentials: Credentials | None = None,
) -> RemoteHolder | RemoteReader:
    """Connect to a cache service.

    Args:
        address: ``host:port`` or ``unix:path``.
        pool: attach to this pool and hold it; its memory must have been allocated just now. None: be a reader.
        pool_name: the pool of a reader.
        incarnation: names this life of the pool's memory; random and not 0. None draws one. Pass it to resume a lease that
            still runs; only the process with the pool's memory may do so.
        holder_name: name of the holder, for people.
        timeout_s: how long to wait for the attachment, and for each answer to a reader's call.
        wait_s: how long to wait for a pool that another worker holds; a killed one holds it until its lease ends.
        on_notices: called when a holder's `take_notices` has something new, on any thread; must be short and must neither
            raise nor wait for an answer.
        on_restart: called at least once when a restarted service has accepted a holder, before any answer or notice of that
            service is complete. As `on_notices`, on any thread.
        on_freed: called with the ids of blocks that became free, right before the answer to the Step that shows it is complete,
            for a holder that mirrors blocks elsewhere; see `PrefixCache.take_freed`. As `on_notices`, on any thread. After
            `on_restart`, each block that no open sequence has may have been freed.
        on_journal: called with the changes of the pool that others make: pins, quotas, retention, cleared namespaces, dropped
            branches, each after the answers before it; for a holder that keeps copies elsewhere. As `on_notices`. It may return
            futures that are done once copies of the cleared namespaces are erased: `clear` at the service waits for them.
        load: returns how busy the holder is, which it then reports to routers. As `on_notices`; see `RemoteHolder.announce`.
        patience_s: how long a holder tries to reach a lost service before it gives its lease up. A service that returns
            within it, restarted, gets the pool's contents, and the holder's sequences go on. None: the lease's TTL.
        credentials: the caller's, and those that secure the connection; None: anonymous, in plaintext.

    Returns:
        A `CacheHolder` where a pool is given, else a `CacheReader`; a context manager either way.

    Raises:
        InvalidArgumentError: an address that cannot be read, a shape out of bounds, credentials that cannot be used there.
        UnauthenticatedError, PermissionDeniedError: the service does not know the caller, or the caller may not hold that
            pool. (A reader gets it at its first call.)
        PoolHeldError: another worker holds the pool, also after `wait_s`.
        UnimplementedError: `on_freed` for a service of an earlier version, which reports no freed blocks.
        StaleIncarnationError: the life of that incarnation has ended.
        UnavailableError: no service could be reached in time. (A reader gets it at its first call.)
    """
    if pool is None:
        return RemoteReader(address, pool_name, timeout_s=timeout_s, credentials=credentials)
    if not wait_s >= 0:
        raise InvalidArgumentError("wait_s", wait_s, "at least 0 seconds")
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return RemoteHolder(
                address,
                pool,
                incarnation=incarnation,
                holder_name=holder_name,
                timeout_s=timeout_s,
                on_notices=on_notices,
                on_restart=on_restart,
                on_freed=on_freed,
                on_journal=on_journal,
                load=load,
                patience_s=patience_s,
                credentials=credentials,
            )
        except PoolHeldError as error:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise
            ends_s = _LONGEST_RETRY_S if error.retry_after_s is None else error.retry_after_s
        time.sleep(min(left_s, max(_SHORTEST_RETRY_S, min(ends_s, _LONGEST_RETRY_S))))  # it may detach earlier
