"""Connections to a real server that end between two commands: a failure of its kinds, and the next command connects."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from resp_servers import RedisServer, needs_redis

from radixkv.gateway.storage.shared_server import connect

pytestmark = needs_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="radixkv-redis-") as folder:
        started = RedisServer(Path(folder))
        yield started
        started.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("end", ["abort", "close", "write_eof"])
def test_a_connection_that_ended_is_a_failure_and_the_next_command_connects(
    server: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop], end: str
) -> None:
    async def told() -> None:
        client, failures = connect(server.url, 300.0)
        assert await client.ping()
        [connection] = client.connection_pool._available_connections
        getattr(connection._writer.transport, end)()
        with contextlib.suppress(failures):
            await client.ping()
        assert await client.ping()
        await client.aclose()

    loop = new_loop()
    loop.run_until_complete(told())
    loop.close()
