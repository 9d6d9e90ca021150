"""One connection to a server: RESP2 with a deadline for every wait and a bound on every reply.

The parsers of the `redis` package read a reply whole, whatever its length, and begin their timeout again with each packet. Here
a server that sends slowly, without end or nonsense costs its connection, no memory and no time beyond the deadline.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Sequence

__all__ = [
    "ClosedError",
    "DeadlineError",
    "ProtocolError",
    "ReplyError",
    "TooLongError",
    "Wire",
    "WireError",
    "command",
]

SCRATCH_BYTES = 4096
"""Read ahead for the head of a reply; also the bound of a line."""
MAX_ELEMENT_BYTES = 64 * 2**10
MAX_REPLY_BYTES = 4 * 2**20
MAX_ELEMENTS = 50_000
MAX_DEPTH = 4
"""Bounds of replies that are no blocks."""

Buffer = bytes | bytearray | memoryview
Reply = bytes | int | None | list["Reply"]


class WireError(Exception):
    """The connection is of no further use."""

    cause = "connection"


class DeadlineError(WireError):
    """The deadline passed."""

    cause = "timeout"


class ClosedError(WireError):
    """The server closed the connection."""

    cause = "closed"


class ProtocolError(WireError):
    """Bytes that are no reply to the command."""

    cause = "protocol"


class TooLongError(WireError):
    """A value is longer than a block; it was not read."""

    cause = "length"


class ReplyError(Exception):
    """The server's error reply to one command; the connection goes on. Its text is not kept: it may repeat arguments.

    Attributes:
        cause: for counters.
    """

    def __init__(self, line: bytes) -> None:
        self.cause = _CAUSES.get(line[1:].partition(b" ")[0], "error")
        super().__init__(self.cause)


_CAUSES = {
    b"OOM": "full",
    b"MISCONF": "full",
    b"READONLY": "readonly",
    b"NOREPLICAS": "readonly",
    b"LOADING": "loading",
    b"MASTERDOWN": "loading",
    b"BUSY": "loading",
    b"NOAUTH": "auth",
    b"WRONGPASS": "auth",
    b"NOPERM": "auth",
    b"MOVED": "moved",
    b"ASK": "moved",
    b"TRYAGAIN": "moved",
    b"CLUSTERDOWN": "moved",
    b"WRONGTYPE": "type",
}


def command(*parts: Buffer) -> bytes:
    """A command in RESP."""
    encoded: list[Buffer] = [b"*%d\r\n" % len(parts)]
    for part in parts:
        encoded += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(encoded)


class Wire:
    """A connection for one thread at a time.

    Args:
        connected: non-blocking; the wire closes it.
        block_bytes: bound of a value read by `read_block`.
    """

    def __init__(self, connected: socket.socket, block_bytes: int) -> None:
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._poll = select.poll()
        self._poll.register(connected, 0)
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = self._end = 0  # of the bytes in the scratch that are not yet used
        self._block = memoryview(bytearray(block_bytes + 2))
        self._room_bytes = self._room_elements = 0
        self.num_read_bytes = 0

    def is_clean(self) -> bool:
        """Whether nothing waits to be read: neither bytes that no command asked for nor the end of the connection."""
        if self._start != self._end:
            return False
        try:
            self._socket.recv_into(self._view, 1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def send(self, parts: Sequence[Buffer], until_s: float, stall_s: float = float("inf")) -> None:
        """Send whole `parts`, uncopied.

        Raises:
            DeadlineError: at `until_s` of the monotonic clock, or after `stall_s` in which the server took nothing.
            ClosedError
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        taken_s = time.monotonic()
        while views:
            try:
                num_sent = self._socket.send(views[0]) if self._is_tls else self._socket.sendmsg(views)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT, min(until_s, taken_s + stall_s))
                continue
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, min(until_s, taken_s + stall_s))
                continue
            except OSError as error:
                raise ClosedError from error
            taken_s = time.monotonic()
            if taken_s > until_s:
                raise DeadlineError
            while views and num_sent >= len(views[0]):
                num_sent -= len(views.pop(0))
            if num_sent:
                views[0] = views[0][num_sent:]

    def read_block(self, until_s: float) -> memoryview | None:
        """The reply to a GET: a value of at most `block_bytes`, valid until the next call; None where there is none.

        Raises:
            ReplyError: the server's error; the connection goes on.
            TooLongError, ProtocolError, DeadlineError, ClosedError: the connection is over.
        """
        line = self._line(until_s)
        kind = line[:1]
        if kind == b"$":
            length = _number(line)
            if length == -1:
                return None
            if length < 0:
                raise ProtocolError
            if length > len(self._block) - 2:
                raise TooLongError
            body = self._block[: length + 2]
            self._read_into(body, until_s)
            if bytes(body[length:]) != b"\r\n":
                raise ProtocolError
            return body[:length]
        if kind == b"-":
            raise ReplyError(line)
        raise ProtocolError

    def read_ok(self, until_s: float) -> None:
        """The reply to a SET."""
        line = self._line(until_s)
        if line[:1] == b"-":
            raise ReplyError(line)
        if line != b"+OK":
            raise ProtocolError

    def call(self, until_s: float, *commands: Sequence[Buffer]) -> list[Reply]:
        """Send commands and read their replies, within the bounds of replies that are no blocks.

        Raises:
            ReplyError: the first error, after the other replies were read. Otherwise as `read_block`.
        """
        self.send([b"".join(command(*parts) for parts in commands)], until_s)
        self._room_bytes, self._room_elements = MAX_REPLY_BYTES, MAX_ELEMENTS
        replies: list[Reply] = []
        first_error: ReplyError | None = None
        for _ in commands:
            try:
                replies.append(self._reply(until_s, 0))
            except ReplyError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return replies

    def _reply(self, until_s: float, depth: int) -> Reply:
        line = self._line(until_s)
        kind = line[:1]
        if kind == b"+":
            return line[1:]
        if kind == b":":
            return _number(line)
        if kind == b"-":
            if depth:
                raise ProtocolError
            raise ReplyError(line)
        if kind not in (b"$", b"*"):
            raise ProtocolError
        length = _number(line)
        if length == -1:
            return None
        if kind == b"*":
            self._room_elements -= length
            if length < 0 or self._room_elements < 0 or depth == MAX_DEPTH:
                raise ProtocolError
            return [self._reply(until_s, depth + 1) for _ in range(length)]
        self._room_bytes -= length
        if not 0 <= length <= MAX_ELEMENT_BYTES or self._room_bytes < 0:
            raise ProtocolError
        body = memoryview(bytearray(length + 2))
        self._read_into(body, until_s)
        if bytes(body[length:]) != b"\r\n":
            raise ProtocolError
        return bytes(body[:length])

    def _line(self, until_s: float) -> bytes:
        while True:
            found = self._scratch.find(b"\r\n", self._start, self._end)
            if found >= 0:
                line = bytes(self._view[self._start : found])
                self._start = found + 2
                return line
            if self._start:
                rest = self._end - self._start
                self._view[:rest] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, rest
            if self._end == SCRATCH_BYTES:
                raise ProtocolError
            self._end += self._receive(self._view[self._end :], until_s)

    def _read_into(self, target: memoryview, until_s: float) -> None:
        done = min(len(target), self._end - self._start)
        target[:done] = self._view[self._start : self._start + done]
        self._start += done
        while done < len(target):
            done += self._receive(target[done:], until_s)

    def _receive(self, target: memoryview, until_s: float) -> int:
        """At least one byte."""
        while True:
            if time.monotonic() > until_s:  # also where bytes never cease to come
                raise DeadlineError
            try:
                received = self._socket.recv_into(target)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN, until_s)
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, until_s)
                continue
            except OSError as error:
                raise ClosedError from error
            if not received:
                raise ClosedError
            self.num_read_bytes += received
            return received

    def _wait(self, event: int, until_s: float) -> None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError
        self._poll.modify(self._socket, event)
        self._poll.poll(min(left_s, 3600.0) * 1000)


def _number(line: bytes) -> int:
    digits = line[1:]
    if not (0 < len(digits) <= 20 and digits.removeprefix(b"-").isdigit()):
        raise ProtocolError
    return int(digits)
