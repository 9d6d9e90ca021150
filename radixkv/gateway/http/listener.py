"""Accepts connections one at a time, round robin over peer addresses: a burst from one address delays no other."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Listener", "allow_open_files"]

MAX_ACCEPTED = 64
"""Connections accepted per callback of the loop; accepting is cheap next to serving."""

MAX_WAITING = 4096
"""Connections of one address that wait to be served; others are closed."""

HANDSHAKE_S = 10.0
"""Bound of a TLS handshake."""

OPEN_FILES = 16_384
"""File descriptors of a gateway: one per running or waiting request, and as many for connections without a request."""

RETRY_S = 0.5
"""Pause after the process runs out of descriptors or memory."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_LOG = logging.getLogger(__name__)


def allow_open_files() -> None:
    """Raise the process's soft limit of open files towards `OPEN_FILES`; the usual 1,024 are fewer than waiting requests."""
    with suppress(ImportError, OSError, ValueError):  # no such limit here, or it may not be changed
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Listener:
    """Serves connections of a socket until closed. The event loop owns it; create it within the loop.

    Args:
        sock: already listening.
        make: creates the protocol of a connection.
        tls: None: plaintext.
    """

    def __init__(
        self, sock: socket.socket, make: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, deque[socket.socket]] = {}  # by address, whose turn is next first
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Stop accepting connections. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._sock)
            for task in self._beginning:
                task.cancel()
            for queue in self._waiting.values():
                for connection in queue:
                    connection.close()
            self._waiting.clear()

    async def wait_closed(self) -> None:
        """Wait until pending handshakes have ended."""
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _LOG.error("no further connection can be taken now: %s", error)
                self._loop.remove_reader(self._sock)
                self._loop.call_later(RETRY_S, self._listen)
                return
            if not self._waiting:
                self._loop.call_soon(self._begin_next)
            queue = self._waiting.setdefault(peer[0], deque())
            if len(queue) < MAX_WAITING:
                queue.append(connection)
            else:
                connection.close()

    def _begin_next(self) -> None:
        """Serve one connection; other callbacks of the loop run before the next one."""
        if not self._waiting:
            return
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        task = self._loop.create_task(self._begin(queue.popleft()))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        if queue:
            self._waiting[address] = queue  # last in turn
        if self._waiting:
            self._loop.call_soon(self._begin_next)

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        timeout_s = HANDSHAKE_S if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, asyncio.CancelledError):  # no TLS, too slow, or gone; or the listener closes
            connection.close()
