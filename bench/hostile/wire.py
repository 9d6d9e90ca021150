"""Parts of attacks: HTTP requests, sockets that stay open, gRPC streams by hand-made frames.

All come from separate addresses on this machine, so that bounds per address do not affect the neighbour.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bench.bad_input.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OPENING,
    PING,
    RST_STREAM,
    SETTINGS,
    call_headers,
    frame,
)
from bench.hostile.stack import Site

__all__ = [
    "SOURCES",
    "Attack",
    "Streams",
    "call",
    "chat",
    "connect",
    "flood",
    "hold_connections",
    "hold_streams",
    "message",
    "send_all",
    "status_of",
]

SOURCE = ("127.0.0.2", 0)
SOURCES = tuple((f"127.0.0.{number}", 0) for number in range(2, 12))
"""Addresses of a client with many of them."""
PATIENCE_S = 15.0
ACK = 1
_READ_BYTES = 65_536

Outcomes = Counter[str]
"""Counts of outcomes: an HTTP status, a gRPC one, "closed", "hung up", "timeout", "open", "taken"."""


class Attack(NamedTuple):
    """One attack.

    Attributes:
        name: for people.
        run: attacks for about so many seconds, at a share of its full size; returns the outcomes of its requests.
        allowed: outcomes of a server that keeps its bounds.
        needed: an outcome that must occur; empty for none.
        seconds: of a short run.
    """

    name: str
    run: Callable[[Site, float, float], Outcomes]
    allowed: frozenset[str]
    needed: str = ""
    seconds: float = 3.0


# -- HTTP


def call(
    site: Site, path: str, body: Any, key: str = "a", *, method: str = "POST", within_s: float = PATIENCE_S
) -> tuple[str, bytes]:
    """Send a request, bytes as they are and others as JSON. Returns status and response. Gives up after `within_s`."""
    connection = http.client.HTTPConnection(site.gateway, timeout=within_s, source_address=SOURCE)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        return str(answer.status), answer.read()
    except TimeoutError:
        return "hung up" if within_s < PATIENCE_S else "timeout", b""
    except (OSError, http.client.HTTPException):
        return "closed", b""
    finally:
        connection.close()


def status_of(site: Site, path: str, body: Any, key: str = "a", **kwargs: Any) -> str:
    """The status of a request."""
    return call(site, path, body, key, **kwargs)[0]


def chat(site: Site, content: Any = "Hello", **more: Any) -> dict[str, Any]:
    """The body of a chat of one user's message, one token of reply."""
    return {"model": site.model, "max_tokens": 1, "messages": [{"role": "user", "content": content}]} | more


def flood(seconds: float, num_threads: int, one: Callable[[int], str]) -> Outcomes:
    """Repeat `one` in threads, each time with another number, for so long."""
    until_s = time.monotonic() + seconds
    numbers = iter(range(1 << 30))
    lock = threading.Lock()

    def repeat(_: int) -> Outcomes:
        found: Outcomes = Counter()
        while time.monotonic() < until_s:
            with lock:
                number = next(numbers)
            found[one(number)] += 1
        return found

    with ThreadPoolExecutor(num_threads) as threads:
        return sum(threads.map(repeat, range(num_threads)), Counter())


def send_all(num_threads: int, calls: Iterable[Callable[[], str]]) -> Outcomes:
    """Make each call once, so many at a time."""
    with ThreadPoolExecutor(num_threads) as threads:
        return Counter(threads.map(lambda each: each(), calls))


# -- sockets


def connect(address: str, *, receive_bytes: int | None = None, source: tuple[str, int] = SOURCE) -> socket.socket:
    """A TCP connection. `receive_bytes`: most bytes that the other side may send before they are read."""
    host, port = address.rsplit(":", 1)
    made = socket.socket()
    try:
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.bind(source)
        made.settimeout(PATIENCE_S)
        made.connect((host, int(port)))
    except OSError:
        made.close()
        raise
    return made


def hold_connections(
    address: str,
    num: int,
    sent: bytes,
    seconds: float,
    *,
    reads: bool = True,
    drip: bytes = b"",
    sources: Sequence[tuple[str, int]] = (SOURCE,),
) -> Outcomes:
    """Open so many connections, send each `sent`, keep them for so long and send each `drip` twice a second.

    Outcome of each: the status of its first response, "closed", or "open" without one. `reads` False: nothing is read.
    """
    found: dict[socket.socket, str] = {}
    until_s = time.monotonic() + seconds
    lost = 0
    with selectors.DefaultSelector() as selector:
        for number in range(num):
            source = sources[number % len(sources)]
            try:
                made = connect(address, receive_bytes=None if reads else 2048, source=source)
                made.setblocking(False)
                made.send(sent)
            except OSError:
                lost += 1
                continue
            found[made] = "open"
            if reads:
                selector.register(made, selectors.EVENT_READ)
            if time.monotonic() > until_s + PATIENCE_S:
                break
        next_drip_s = time.monotonic()
        while time.monotonic() < until_s and (found or drip):
            for key, _ in selector.select(0.1) if selector.get_map() else ():
                _hear(key.fileobj, found, selector)  # type: ignore[arg-type]  # only sockets are registered
            if not selector.get_map():
                time.sleep(0.05)
            if drip and time.monotonic() >= next_drip_s:
                next_drip_s += 0.5
                for made in [each for each, what in found.items() if what == "open"]:
                    try:
                        made.send(drip)
                    except OSError:
                        found[made] = "closed"
        for made in found:
            made.close()
    return Counter(found.values()) + Counter({"closed": lost})


def _hear(made: socket.socket, found: dict[socket.socket, str], selector: selectors.BaseSelector) -> None:
    try:
        heard = made.recv(_READ_BYTES)
    except OSError:
        heard = b""
    if heard.startswith(b"HTTP/") and found[made] == "open":
        found[made] = heard.split(b" ", 2)[1].decode("ascii", "replace")
    if not heard:
        selector.unregister(made)
        if found[made] == "open":
            found[made] = "closed"


# -- gRPC


def message(payload: bytes) -> bytes:
    """A gRPC message as in DATA frames."""
    return b"\x00" + struct.pack(">I", len(payload)) + payload


def hold_streams(
    address: str,
    path: str,
    num: int,
    seconds: float,
    *,
    sent: bytes | None = b"",
    key: str = "",
    per_connection: int = 100,
) -> Outcomes:
    """Open so many streams of a call and keep them for so long. Returns the numbers "refused" and still "open".

    Args:
        sent: the request; None: never sent.
        key: of the caller; empty: none.
        per_connection: streams of a connection, even if the server allows fewer.
    """
    held: list[Streams] = []
    until_s = time.monotonic() + seconds
    lost = 0
    for first in range(0, num, per_connection):
        try:
            held.append(Streams(address, path, min(per_connection, num - first), sent, key))
        except OSError:
            lost += min(per_connection, num - first)
    while time.monotonic() < until_s:
        for connection in held:
            connection.pump()
        time.sleep(0.05)
    found = Counter({"refused": lost})
    for connection in held:
        found["open"] += connection.num_open
        found["refused"] += connection.num_streams - connection.num_open
        connection.socket.close()
    return +found


class Streams:
    """Streams of a call over one HTTP/2 connection. It answers pings and settings, and records ended streams.

    Args:
        sent: the request; None: never sent.
        key: of the caller; empty: none.
    """

    def __init__(self, address: str, path: str, num_streams: int, sent: bytes | None = b"", key: str = "") -> None:
        more = ((b"authorization", f"Bearer {key}".encode()),) if key else ()
        block = call_headers(path.encode(), *more)
        self.num_streams = num_streams
        self._ended: set[int] = set()
        self._heard = b""
        self._is_closed = False
        body = b"" if sent is None else message(sent)
        frames = [OPENING]
        for stream in range(1, 2 * num_streams, 2):
            frames.append(frame(HEADERS, END_HEADERS, stream, block))
            if sent is not None:
                frames.append(frame(DATA, END_STREAM, stream, body))
        self.socket = connect(address)
        self.socket.sendall(b"".join(frames))
        self.socket.setblocking(False)

    @property
    def num_open(self) -> int:
        """Number of streams that the server has not ended."""
        return 0 if self._is_closed else self.num_streams - len(self._ended)

    def pump(self) -> None:
        """Read received frames and send the required answers."""
        try:
            while heard := self.socket.recv(_READ_BYTES):
                self._heard += heard
            self._is_closed = True
        except BlockingIOError:
            pass
        except OSError:
            self._is_closed = True
        while len(self._heard) >= 9:
            length = int.from_bytes(self._heard[:3], "big")
            if len(self._heard) < 9 + length:
                break
            kind, flags, stream = self._heard[3], self._heard[4], int.from_bytes(self._heard[5:9], "big")
            payload, self._heard = self._heard[9 : 9 + length], self._heard[9 + length :]
            if kind in (RST_STREAM,) or (kind in (HEADERS, DATA) and flags & END_STREAM):
                self._ended.add(stream)
            elif kind == GOAWAY:
                last = int.from_bytes(payload[:4], "big")
                self._ended |= {each for each in range(1, 2 * self.num_streams, 2) if each > last}
            elif kind in (PING, SETTINGS) and not flags & ACK:
                self._answer(frame(kind, ACK, 0, payload if kind == PING else b""))

    def _answer(self, sent: bytes) -> None:
        try:
            self.socket.send(sent)
        except OSError:
            self._is_closed = True
