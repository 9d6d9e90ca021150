"""A connection reads what RESP allows and no more, however the bytes are cut into packets."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from radixkv.stores.remote.wire import (
    MAX_ELEMENTS,
    ClosedError,
    DeadlineError,
    ProtocolError,
    ReplyError,
    TooLongError,
    Wire,
    command,
)

BLOCK_BYTES = 10_000


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    wire = Wire(near, BLOCK_BYTES)
    yield wire, far
    wire.close()
    far.close()


def soon() -> float:
    return time.monotonic() + 300.0


@pytest.mark.parametrize("seed", range(20))
def test_replies_are_read_however_they_are_cut(ends: tuple[Wire, socket.socket], seed: int) -> None:
    wire, far = ends
    draw = random.Random(seed)
    values = [draw.choice([None, b"", draw.randbytes(draw.randrange(1, BLOCK_BYTES + 1))]) for _ in range(30)]
    stream = b"".join(b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value) for value in values)

    def send() -> None:
        rest = stream
        while rest:
            size = draw.choice([1, 2, 3, 100, 4096, 9000])
            far.sendall(rest[:size])
            rest = rest[size:]

    thread = threading.Thread(target=send)
    thread.start()
    for value in values:
        reply = wire.read_block(soon())
        assert (None if reply is None else bytes(reply)) == value
    thread.join()
    assert wire.is_clean()


def test_nested_replies_are_read(ends: tuple[Wire, socket.socket]) -> None:
    wire, far = ends
    far.sendall(b"*3\r\n:-7\r\n*2\r\n$2\r\nab\r\n*-1\r\n+yes\r\n$-1\r\n")
    assert wire.call(soon(), [b"A"], [b"B"]) == [[-7, [b"ab", None], b"yes"], None]
    assert far.recv(100) == b"*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n" == command(b"A") + command(b"B")


def test_an_error_among_replies_is_raised_after_all_were_read(ends: tuple[Wire, socket.socket]) -> None:
    wire, far = ends
    far.sendall(b":1\r\n-OOM the text\r\n-ERR another\r\n:2\r\n")
    with pytest.raises(ReplyError) as caught:
        wire.call(soon(), *[[b"A"]] * 4)
    assert caught.value.cause == "full"
    assert "text" not in repr(caught.value)
    assert wire.is_clean()


@pytest.mark.parametrize(
    "stream",
    [
        b"*1\r\n-ERR x\r\n",
        b"*%d\r\n" % (MAX_ELEMENTS + 1),
        b"*1\r\n" * 6,
        b"$70000\r\n",
        b"$1\r\nxyz",
        b"(1\r\n",
        b"x" * 4096,
    ],
)
def test_replies_beyond_their_bounds_end_the_connection(ends: tuple[Wire, socket.socket], stream: bytes) -> None:
    wire, far = ends
    far.sendall(stream)
    with pytest.raises(ProtocolError):
        wire.call(soon(), [b"A"])


def test_a_longer_value_is_not_read(ends: tuple[Wire, socket.socket]) -> None:
    wire, far = ends
    far.sendall(b"$%d\r\n" % (BLOCK_BYTES + 1))
    with pytest.raises(TooLongError):
        wire.read_block(soon())


def test_a_deadline_ends_reads_and_writes_whether_bytes_come_or_not(ends: tuple[Wire, socket.socket]) -> None:
    wire, far = ends
    with pytest.raises(DeadlineError):
        wire.read_block(time.monotonic() + 0.05)
    far.sendall(b"$2\r\nab\r\n$4\r\nab")
    with pytest.raises(DeadlineError):
        wire.read_block(time.monotonic() - 0.001)
    assert wire.read_block(soon()) == b"ab"
    with pytest.raises(DeadlineError):
        wire.read_block(time.monotonic() + 0.05)
    with pytest.raises(DeadlineError):
        wire.send([bytes(50_000_000)], time.monotonic() + 0.05)
    begin_s = time.monotonic()
    with pytest.raises(DeadlineError):
        wire.send([bytes(50_000_000)], time.monotonic() + 300.0, stall_s=0.05)
    assert time.monotonic() - begin_s < 200.0


@pytest.mark.parametrize("seed", range(4))
def test_parts_arrive_whole_however_slowly_they_are_taken(ends: tuple[Wire, socket.socket], seed: int) -> None:
    wire, far = ends
    draw = random.Random(seed)
    parts = [draw.randbytes(draw.choice([0, 1, 100, 300_000, 1_000_000])) for _ in range(6)]
    received = bytearray()

    def receive() -> None:
        while len(received) < sum(map(len, parts)):
            received.extend(far.recv(draw.choice([1000, 70_000])))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    wire.send(parts, soon(), stall_s=100.0)
    thread.join()
    assert received == b"".join(parts)


def test_bytes_that_nothing_asked_for_or_an_end_make_a_connection_unclean(ends: tuple[Wire, socket.socket]) -> None:
    wire, far = ends
    assert wire.is_clean()
    far.sendall(b"$2\r\nab\r\n+x")
    assert wire.read_block(soon()) == b"ab"
    assert not wire.is_clean()
    near, far = socket.socketpair()
    near.setblocking(False)
    other = Wire(near, 1)
    far.close()
    assert not other.is_clean()
    with pytest.raises(ClosedError):
        other.read_block(soon())
    with pytest.raises(ClosedError):
        other.send([b"x"], soon())
    other.close()


@pytest.mark.parametrize(
    "stream", [b"$-2", b"$-3", b"$-100", b"$", b"$x", b"$1x", b"$" + b"1" * 21, b":1", b"+OK", b"*1", b"", b"x"]
)
def test_a_reply_that_is_no_block_ends_the_connection_at_once(ends: tuple[Wire, socket.socket], stream: bytes) -> None:
    wire, far = ends
    far.sendall(stream + b"\r\n")
    with pytest.raises(ProtocolError):
        wire.read_block(soon())
