"""One read or write of blocks on one server: pipelined, within a deadline, with at most a window of blocks on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from radixkv.stores.block import SealedBlock
from radixkv.stores.remote.server import Server
from radixkv.stores.remote.wire import ClosedError, DeadlineError, ReplyError, TooLongError, Wire, WireError, command
from radixkv.stores.stats import LevelCounters

__all__ = ["STALL_S", "ReadCall", "WriteCall"]

STALL_S = 5.0
"""A write is given up when the server takes or answers nothing for this time."""
_CLOSED_TRIES = 3
"""Connections that a server may close on one call, as it does when it restarts."""


class ReadCall:
    """Reads values; misses are counted by cause.

    Args:
        keys: each with the index by which `receive` knows it. receive: gets an index and a value, valid during that call.
        value_bytes: of every value; one of another length is a miss.
        window: blocks on their way at most.
    """

    def __init__(
        self,
        keys: list[tuple[int, bytes]],
        receive: Callable[[int, memoryview], None],
        value_bytes: int,
        window: int,
        counters: LevelCounters,
    ) -> None:
        self._keys = keys
        self._receive = receive
        self._value_bytes = value_bytes
        self._window = window
        self._counters = counters
        self._position = 0  # of the next reply
        self._num_replies = 0  # that are no errors
        self.num_hits = 0
        self.error_cause = ""  # of the last error reply

    def run(self, server: Server, until_s: float) -> None:
        """Read what comes by `until_s`. Raises what `receive` raises."""
        num_closed = 0
        while self._position < len(self._keys):
            wire = server.borrow(until_s)
            if wire is None:
                self._miss_rest("deadline" if server.is_usable else "unavailable")
                return
            num_before = wire.num_read_bytes
            try:
                self._read(wire, until_s)
            except TooLongError:  # only this value is at fault; the rest is read on another connection
                wire.close()
                self._counters.miss("length")
                self._position += 1
            except WireError as error:
                wire.close()
                num_closed += isinstance(error, ClosedError)
                if isinstance(error, ClosedError) and num_closed < _CLOSED_TRIES:
                    continue
                is_late = isinstance(error, DeadlineError)
                if not is_late or wire.num_read_bytes == num_before:  # late and silent: it may have stopped
                    server.failed(error.cause)
                self._miss_rest("deadline" if is_late else error.cause)
                return
            except BaseException:
                wire.close()
                raise
            else:
                if self._num_replies:
                    server.give_back(wire)
                else:  # nothing but errors
                    wire.close()
                    server.failed(self.error_cause)

    def _read(self, wire: Wire, until_s: float) -> None:
        for reply in _fetch(wire, [key for _, key in self._keys[self._position :]], until_s, self._window):
            index = self._keys[self._position][0]
            self._position += 1
            if isinstance(reply, ReplyError):
                self.error_cause = reply.cause
                self._counters.miss(reply.cause)
                continue
            self._num_replies += 1
            if reply is None:
                self._counters.miss("absent")
            elif len(reply) != self._value_bytes:
                self._counters.miss("length")
            else:
                self._receive(index, reply)
                self.num_hits += 1

    def _miss_rest(self, cause: str) -> None:
        self._counters.miss(cause, len(self._keys) - self._position)


def _fetch(wire: Wire, keys: Sequence[bytes], until_s: float, window: int) -> Iterator[memoryview | ReplyError | None]:
    """The reply to a GET of each key, in order."""
    num_sent = 0
    for position in range(len(keys)):
        if num_sent - position <= window // 2 and num_sent < len(keys):
            batch = keys[num_sent : position + window]
            wire.send([b"".join(command(b"GET", key) for key in batch)], until_s)
            num_sent += len(batch)
        try:
            yield wire.read_block(until_s)
        except ReplyError as error:
            yield error


class WriteCall:
    """Writes blocks under their keys, each after the name of its parent; those that are lost are counted by cause.

    `rejection`: cause of the server's refusal.
    """

    def __init__(self, blocks: list[tuple[bytes, SealedBlock]], window: int, counters: LevelCounters) -> None:
        self._blocks = blocks
        self._window = window
        self._counters = counters
        self._num_done = 0  # answered by the server
        self.num_written = 0
        self.rejection = ""

    def run(self, server: Server, until_s: float) -> None:
        """Write until all is answered, the server refuses a value, or `until_s`."""
        num_closed = 0
        while self._num_done < len(self._blocks) and not self.rejection:
            wire = server.borrow(min(until_s, time.monotonic() + STALL_S))
            if wire is None:
                self._lose_rest("deadline" if server.is_usable else "unavailable")
                return
            try:
                self._write(wire, until_s)
            except WireError as error:
                wire.close()
                num_closed += isinstance(error, ClosedError)
                if isinstance(error, ClosedError) and num_closed < _CLOSED_TRIES:
                    continue
                server.failed(error.cause)
                self._lose_rest("deadline" if isinstance(error, DeadlineError) else error.cause)
                return
            except BaseException:
                wire.close()
                raise
            server.give_back(wire)
        self._lose_rest(self.rejection)

    def _write(self, wire: Wire, until_s: float) -> None:
        num_sent = self._num_done
        while True:
            while num_sent < len(self._blocks) and num_sent - self._num_done < self._window and not self.rejection:
                key, block = self._blocks[num_sent]
                size = len(block.parent) + len(block.sealed)
                head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(key), key, size, block.parent)
                wire.send([head, block.sealed, b"\r\n"], until_s, STALL_S)
                num_sent += 1
            if self._num_done == num_sent:
                return
            try:
                wire.read_ok(min(until_s, time.monotonic() + STALL_S))
                self.num_written += 1
            except ReplyError as error:
                self.rejection = error.cause
                self._counters.unwritten(error.cause)
            self._num_done += 1

    def _lose_rest(self, cause: str) -> None:
        if num_lost := len(self._blocks) - self._num_done:
            self._counters.unwritten(cause, num_lost)
