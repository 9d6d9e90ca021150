"""Input beyond a server's limits: endless heads and lists, missing bodies, readers that never read, idle streams.

Open connections stay open during the run, at most `MAX_LEFT`; the caller checks whether others are served.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bench.bad_input.http1 import CALL_S
from bench.hostile.bodies import wrong_lists
from bench.hostile.stack import Site
from bench.hostile.wire import Streams, connect

__all__ = ["Excess", "ExcessOutcome"]

HEAD_BYTES = 1 << 20
LIST_BYTES = 256 << 10
MAX_LEFT = 64
_HEAD_S = 1.0
"""A head that is neither refused nor ended after this time counts as accepted."""
_HOST = b"host: 127.0.0.1\r\n"
_GET = b"GET /v1/models HTTP/1.1\r\n" + _HOST
_WATCH = ("/grpc.health.v1.Health/Watch", b"")
_EVENTS = ("/radixkv.v1.PrefixCache/Events", b"\x20\x01")  # follow


class ExcessOutcome(NamedTuple):
    """The input sent, its result, and the fault found, empty for none."""

    kind: str
    answer: str
    fault: str


class Excess:
    """Draws and sends. `send` is thread-safe.

    Args:
        seed: a case depends on it and its number.
        site: under attack.
    """

    def __init__(self, seed: int, site: Site) -> None:
        self._seed = seed
        self._site = site
        self._lists = list(wrong_lists(site, LIST_BYTES))
        self._left: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self._kinds: dict[str, Callable[[random.Random], str]] = {
            "head": self._send_head,
            "list": self._send_list,
            "body": self._leave_body,
            "reader": self._leave_reader,
            "stream": self._leave_stream,
        }

    def send(self, number: int) -> ExcessOutcome:
        """Case `number`."""
        source = random.Random(f"{self._seed}:excess:{number}")
        kind = source.choice(sorted(self._kinds))
        started_s = time.monotonic()
        try:
            answer = self._kinds[kind](source)
        except TimeoutError:
            answer = "hang"
        except (OSError, http.client.HTTPException):
            answer = "closed"
        is_wrong = answer in ("500", "501", "hang", "taken")
        fault = f"{kind} {number}: {answer} after {time.monotonic() - started_s:.1f} s" if is_wrong else ""
        return ExcessOutcome(kind, f"{kind}: {answer}", fault)

    def _send_head(self, source: random.Random) -> str:
        begin, piece = source.choice(
            ((_GET, b"x-a: " + b"b" * 1000 + b"\r\n"), (_GET + b"x: ", b"b" * 4096), (b"GET /", b"b" * 4096))
        )
        with connect(self._site.gateway) as made:
            made.sendall(begin)
            for _ in range(HEAD_BYTES // len(piece)):
                made.sendall(piece)
            made.settimeout(_HEAD_S)
            try:
                return _status(made.recv(4096))
            except TimeoutError:
                return "taken"

    def _send_list(self, source: random.Random) -> str:
        path, _, make = source.choice(self._lists)
        connection = http.client.HTTPConnection(self._site.gateway, timeout=CALL_S)
        try:
            connection.request("POST", path, make(), {"content-type": "application/json"})
            return str(connection.getresponse().status)
        finally:
            connection.close()

    def _leave_body(self, source: random.Random) -> str:
        path = source.choice((b"/v1/chat/completions", b"/v1/radixkv/conversations/import", b"/nowhere"))
        head = b"POST " + path + b" HTTP/1.1\r\n" + _HOST + b"content-type: application/json\r\n"
        length = source.choice((b"content-length: 1000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n5\r\n"))
        return self._leave(connect(self._site.gateway), head + length + b'{"a"')

    def _leave_reader(self, source: random.Random) -> str:
        path = source.choice((b"/static/vendor/highlight.js", b"/", b"/openapi.json", b"/metrics"))
        made = connect(self._site.gateway, receive_bytes=2048)
        return self._leave(made, (b"GET " + path + b" HTTP/1.1\r\n" + _HOST + b"\r\n") * 20)

    def _leave_stream(self, source: random.Random) -> str:
        address, (path, sent) = source.choice(
            ((self._site.worker, _WATCH), (self._site.service, _WATCH), (self._site.service, _EVENTS))
        )
        half = None if source.random() < 0.3 else sent
        return self._leave(Streams(address, path, source.choice((1, 4, 16)), half).socket, b"")

    def _leave(self, made: socket.socket, sent: bytes) -> str:
        made.sendall(sent)
        with self._lock:
            self._left.append(made)
            oldest = self._left.popleft() if len(self._left) > MAX_LEFT else None
        if oldest is not None:
            oldest.close()
        return "left"

    def close(self) -> None:
        """Close all open connections."""
        while self._left:
            self._left.popleft().close()


def _status(heard: bytes) -> str:
    return heard.split(b" ", 2)[1].decode("ascii", "replace") if heard.startswith(b"HTTP/") else "closed"
