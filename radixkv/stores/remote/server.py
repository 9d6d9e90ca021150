"""One RESP server: its connections, its breaker, and the thread that connects, so that no caller waits for a name look-up."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from radixkv.stores.breaker import Breaker
from radixkv.stores.remote.url import CONNECT_TIMEOUT_S, RemoteUrl
from radixkv.stores.remote.wire import ProtocolError, Reply, ReplyError, Wire, WireError
from radixkv.stores.stats import LevelCounters

__all__ = ["Server"]

_LOG = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
"""From the opening of a server's breaker to the next connection."""


class Server:
    """Connections to one server, each lent to one caller at a time. Any thread may call any method.

    Args:
        max_idle: connections kept while no caller has them.
        on_connected: called from the server's thread at each connection, before a caller gets it: another server may have
            taken the address.
    """

    def __init__(
        self,
        url: RemoteUrl,
        block_bytes: int,
        counters: LevelCounters,
        max_idle: int,
        on_connected: Callable[[], None],
    ) -> None:
        self.url = url
        self.breaker = Breaker(failures=2, first_wait_s=FIRST_WAIT_S, longest_wait_s=LONGEST_WAIT_S)
        self._block_bytes = block_bytes
        self._counters = counters
        self._max_idle = max_idle
        self._on_connected = on_connected
        self._changed = threading.Condition()
        self._idle: list[Wire] = []
        self._num_waiting = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="radixkv-remote-connect", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        return self.breaker.is_closed and not self._is_closed

    def borrow(self, until_s: float) -> Wire | None:
        """A connection, to be given back or closed; None where none can be had by `until_s` of the monotonic clock."""
        for _ in range(self._max_idle + 2):  # each kept one may have been closed by the server meanwhile
            with self._changed:
                self._num_waiting += 1
                try:
                    self._changed.notify_all()
                    while not self._idle and self.is_usable:
                        left_s = until_s - time.monotonic()
                        if left_s <= 0:
                            return None
                        self._changed.wait(min(left_s, 3600.0))
                    if not self.is_usable:
                        return None
                    wire = self._idle.pop()
                finally:
                    self._num_waiting -= 1
            if wire.is_clean():
                return wire
            wire.close()
        self.failed("protocol")  # a new one, too, had bytes that no command asked for
        return None

    def give_back(self, wire: Wire, *, is_proof: bool = True) -> None:
        """Return a connection on which every reply was read. `is_proof`: blocks were; other commands prove little."""
        if is_proof:
            self.breaker.succeeded()
        with self._changed:
            if not self.is_usable or len(self._idle) >= self._max_idle:
                wire.close()
                return
            self._idle.append(wire)
            self._changed.notify_all()

    def failed(self, cause: str) -> None:
        """Count a fault; after two in a row the server is left alone for a time."""
        self._counters.fault(cause)
        if self.breaker.failed():
            _LOG.warning("remote cache %s is not used for a time: %s", self.url.place, cause)
            self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that no caller has: the next ones look up the address again."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for wire in idle:
            wire.close()

    def call(self, until_s: float, *parts: bytes) -> Reply:
        """The reply to one command. Raises as `call_all`."""
        return self.call_all(until_s, [parts])[0]

    def call_all(self, until_s: float, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        """The replies to commands that are sent together.

        Raises:
            ReplyError: the server's first error.
            WireError: no reply by `until_s`; reported as a fault already.
        """
        wire = self.borrow(until_s)
        if wire is None:
            raise WireError
        try:
            replies = wire.call(until_s, *commands)
        except ReplyError:
            self.give_back(wire, is_proof=False)
            raise
        except WireError as error:
            wire.close()
            self.failed(error.cause)
            raise
        self.give_back(wire, is_proof=False)
        return replies

    def close(self) -> None:
        """Close every connection; the thread ends by itself where a name look-up holds it up."""
        with self._changed:
            self._is_closed = True
        self.drop_idle()
        self._thread.join(CONNECT_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._is_due():
                    self._changed.wait(None if self.breaker.is_closed else max(self.breaker.wait_s(), 0.01))
                if self._is_closed:
                    return
            if not self.breaker.allows():
                continue
            try:
                wire = self._connect()
                self._on_connected()
            except Exception as error:  # whatever happens, the thread goes on
                self.failed(_cause_of(error))
            else:
                if not self.breaker.is_closed and self.breaker.succeeded():
                    _LOG.warning("remote cache %s is in use again", self.url.place)
                with self._changed:
                    if self._is_closed:
                        wire.close()
                        return
                    self._idle.append(wire)
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        if not self.breaker.is_closed:
            return self.breaker.wait_s() == 0
        return self._num_waiting > len(self._idle)

    def _connect(self) -> Wire:
        wire = Wire(self.url.connect(), self._block_bytes)
        try:
            until_s = time.monotonic() + CONNECT_TIMEOUT_S
            url = self.url
            if url.username is not None or url.password is not None:
                login = [part.encode() for part in (url.username, url.password or "") if part is not None]
                _expect(wire.call(until_s, [b"AUTH", *login]), b"OK")
            if url.db:
                _expect(wire.call(until_s, [b"SELECT", b"%d" % url.db]), b"OK")
            _expect(wire.call(until_s, [b"PING"]), b"PONG")
        except BaseException:
            wire.close()
            raise
        return wire


def _expect(replies: list[Reply], expected: bytes) -> None:
    if replies != [expected]:
        raise ProtocolError


def _cause_of(error: BaseException | None) -> str:
    """A constant for counters and logs: the texts of errors may repeat what was sent."""
    if isinstance(error, WireError | ReplyError):
        return error.cause
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return "certificate"
        if isinstance(error, ssl.SSLError):
            return "tls"
        if isinstance(error, ConnectionRefusedError):
            return "refused"
        if isinstance(error, socket.gaierror):
            return "name"
        if isinstance(error, TimeoutError):
            return "timeout"
        if not isinstance(error, OSError | RedisError):
            return "internal"
        if error.__context__ is None:
            break
        error = error.__context__
    return "connection"
