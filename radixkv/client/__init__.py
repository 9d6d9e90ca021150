"""The façade of `PrefixCache` over gRPC: `connect` to a service, as the holder of a pool or as a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from radixkv.client.holder import RemoteHolder
from radixkv.client.reader import RemoteReader
from radixkv.core.api import PoolShape
from radixkv.net.channel import Credentials

__all__ = ["Credentials", "RemoteHolder", "RemoteReader", "connect"]


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
    on_notices: Callable[[], None] | None = ...,
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
    on_notices: Callable[[], None] | None = None,
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
        on_notices: called when a holder's `take_notices` has something new, on any thread; must be short and must neither
            raise nor wait for an answer.
        patience_s: how long a holder tries to reach a lost service before it gives its lease up. A service that returns
            within it, restarted, gets the pool's contents, and the holder's sequences go on. None: the lease's TTL.
        credentials: the caller's, and those that secure the connection; None: anonymous, in plaintext.

    Returns:
        A `CacheHolder` where a pool is given, else a `CacheReader`; a context manager either way.

    Raises:
        InvalidArgumentError: an address that cannot be read, a shape out of bounds, credentials that cannot be used there.
        UnauthenticatedError, PermissionDeniedError: the service does not know the caller, or the caller may not hold that
            pool. (A reader gets it at its first call.)
        PoolHeldError: another worker holds the pool.
        StaleIncarnationError: the life of that incarnation has ended.
        UnavailableError: no service could be reached in time. (A reader gets it at its first call.)
    """
    if pool is None:
        return RemoteReader(address, pool_name, timeout_s=timeout_s, credentials=credentials)
    return RemoteHolder(
        address,
        pool,
        incarnation=incarnation,
        holder_name=holder_name,
        timeout_s=timeout_s,
        on_notices=on_notices,
        patience_s=patience_s,
        credentials=credentials,
    )
