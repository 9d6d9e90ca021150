"""What a listener does where the machine has no room for a further connection."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest

from radixkv.gateway.http import listener
from radixkv.gateway.http.listener import Listener


class Full(socket.socket):
    """Has no room for a connection until there is."""

    is_full = True
    num_asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.num_asked += 1
        if self.is_full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_where_there_is_no_room_one_looks_again_after_a_while_and_not_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve(sock: Full) -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        retries = []
        monkeypatch.setattr(loop, "call_later", lambda wait_s, retry: retries.append((wait_s, retry)))

        class Told(asyncio.Protocol):
            def connection_made(self, _transport: asyncio.BaseTransport) -> None:
                arrived.set()

        taking = Listener(sock, Told, None)
        with socket.create_connection(sock.getsockname()):
            while not retries:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert sock.num_asked == 1
            [(wait_s, retry)] = retries
            assert wait_s == listener.RETRY_S
            sock.is_full = False
            retry()
            await arrived.wait()
        taking.close()
        await taking.wait_closed()

    with Full() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        asyncio.run(serve(sock))


def test_a_process_that_may_have_few_files_open_is_given_more_as_far_as_it_may() -> None:
    check = """
import resource
from radixkv.gateway.http.listener import OPEN_FILES, allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_open_files()
soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == (OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)), soft
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
allow_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, 512)
"""
    subprocess.run([sys.executable, "-c", check], check=True)


def test_one_address_has_so_many_connections_wait_and_takes_no_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_WAITING", 2)

    class Gathering(socket.socket):
        """Six connections are there before the first is taken."""

        arrived: ClassVar[list[tuple[socket.socket, Any]]] = []
        num_awaited = 6

        def accept(self) -> tuple[socket.socket, Any]:
            while self.num_awaited:
                select.select([self], [], [])
                self.arrived.append(super().accept())
                self.num_awaited -= 1
            if not self.arrived:
                raise BlockingIOError
            return self.arrived.pop(0)

    async def serve(sock: socket.socket) -> None:
        made: list[str] = []

        class Noted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport.get_extra_info("peername")[0])

        with ExitStack() as stack:
            greedy = [stack.enter_context(socket.create_connection(sock.getsockname())) for _ in range(5)]
            stack.enter_context(socket.create_connection(sock.getsockname(), source_address=("127.0.0.2", 0)))
            taking = Listener(sock, Noted, None)
            while len(made) < 3:
                await asyncio.sleep(0)
            assert made == ["127.0.0.1", "127.0.0.2", "127.0.0.1"], "in turns"
            for connection in greedy[2:]:
                connection.settimeout(300)
                assert connection.recv(1) == b"", "one too many is closed"
            taking.close()
            await taking.wait_closed()

    with Gathering() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        asyncio.run(serve(sock))
