"""A connection to the Valkey or Redis server that gateways share; it may be gone at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from radixkv.core.errors import InvalidArgumentError

__all__ = ["connect", "stop"]

_SCHEMES = ("redis://", "rediss://", "valkey://", "valkeys://", "unix://")
_LOST_S = 0.1  # a task that has not ended by then is cancelled again


def connect(url: str, timeout_s: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return an asyncio client of a server, connected at its first command, and the kinds of its failures.

    uvloop raises RuntimeError where a connection ended between two commands.

    Raises:
        InvalidArgumentError: not a URL of a server, or redis is not installed; shows no part that may hold a secret.
    """
    if not url.startswith(_SCHEMES):
        raise InvalidArgumentError(
            "shared", url.rpartition("@")[2], f"a URL that begins with one of {', '.join(_SCHEMES)}"
        )
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
    except ImportError as error:
        raise InvalidArgumentError(
            "shared", "a server", "absent without redis: pip install 'radixkv[shared]'"
        ) from error
    try:
        client = Redis.from_url(
            url.replace("valkey", "redis", 1) if url.startswith("valkey") else url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # not connected: it checks the options
    except (ValueError, TypeError, RedisError):
        bound = "redis://user:password@host:port/db with options of redis, each part percent-encoded"
        raise InvalidArgumentError("shared", f"{url.partition('://')[0]}://…", bound) from None
    return client, (OSError, TimeoutError, RedisError, RuntimeError)


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks that send commands, and wait until they have ended.

    A cancellation that comes as a command has just been written is lost on Python 3.11, by its `asyncio.wait_for`.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_LOST_S)
    await asyncio.gather(*tasks, return_exceptions=True)
