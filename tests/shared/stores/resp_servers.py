"""Servers of the remote level for tests: a real `redis-server`, one that lies, and a slow link to either."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from free_ports import free_port
from waiting import wait_until

__all__ = ["LyingServer", "RedisServer", "SlowLink", "free_port", "needs_redis"]

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="needs valkey-server or redis-server")
START_S = 300.0


class RedisServer:
    """A `redis-server` on a loopback port and on a unix socket in `folder`, without persistence."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = folder
        self.socket_path = folder / f"{self.port}.sock"
        self._options = options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PROGRAM is not None
        ports = () if "--tls-port" in self._options else ("--port", str(self.port))
        command = [PROGRAM, *ports, "--unixsocket", str(self.socket_path), "--dir", str(self.folder), "--save", ""]
        self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.DEVNULL)
        try:
            wait_until(self._answers)
        except BaseException:
            self.stop()
            raise

    def command(self, *parts: str | bytes) -> bytes:
        """The first bytes of the reply to a command, sent on the unix socket."""
        encoded = [part.encode() if isinstance(part, str) else part for part in parts]
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(START_S)
            link.connect(str(self.socket_path))
            heads = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded)
            link.sendall(b"*%d\r\n%s" % (len(encoded), heads))
            return link.recv(65536)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self.socket_path.unlink(missing_ok=True)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the server ended"
        with contextlib.suppress(OSError):
            return self.command("PING")[:1] in b"+-"
        return False


class LyingServer:
    """Speaks RESP and keeps what is set, until `lie` is given: then that decides the answer.

    `lie` gets the words of a command and yields pieces to send; None for a command that is answered truly. After its pieces
    the connection stays open, unless one of them is empty: that closes it.
    """

    def __init__(self) -> None:
        self.lie: Callable[[list[bytes]], Iterable[bytes] | None] | None = None
        self.values: dict[bytes, bytes] = {}
        self.commands: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        reader = link.makefile("rb")
        with contextlib.suppress(OSError, ValueError), link, reader:
            while head := reader.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(reader.read(int(reader.readline()[1:])))
                    reader.readline()
                self.commands.append(words[0])
                pieces = self.lie(words) if self.lie is not None else None
                for piece in [self._truth(words)] if pieces is None else pieces:
                    if not piece:
                        return
                    link.sendall(piece)

    def _truth(self, words: list[bytes]) -> bytes:
        name, *arguments = words
        if name == b"SET":
            self.values[arguments[0]] = arguments[1]
        if name == b"GET":
            value = self.values.get(arguments[0])
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        return {b"PING": b"+PONG\r\n", b"SCARD": b":0\r\n", b"SSCAN": b"*2\r\n$1\r\n0\r\n*0\r\n"}.get(name, b"+OK\r\n")


@dataclass
class Lane:
    """One direction of a link."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    free_s: float = 0.0  # when it has carried what it took


class SlowLink:
    """A proxy to a port that carries `bytes_per_s` in each direction over all connections; its buffers are small."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self._target = port
        self._bytes_per_s = bytes_per_s
        self._lanes = (Lane(), Lane())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [near, far]
            for link in (near, far):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            for source, target, lane in ((near, far, self._lanes[0]), (far, near, self._lanes[1])):
                threading.Thread(target=self._carry, args=(source, target, lane), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, lane: Lane) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(16384):
                with lane.lock:
                    lane.free_s = max(lane.free_s, time.monotonic() - 0.01) + len(piece) / self._bytes_per_s
                    wait_s = lane.free_s - time.monotonic()
                time.sleep(max(0.0, wait_s))
                target.sendall(piece)
        for link in (source, target):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def oversleep() -> Iterator[Callable[[], float]]:
    """By how much this machine woke a thread late meanwhile, in seconds, all in all: no deadline holds better than that."""
    all_s = 0.0
    ended = threading.Event()

    def beat() -> None:
        nonlocal all_s
        while not ended.is_set():
            begin_s = time.monotonic()
            ended.wait(0.01)
            all_s += max(0.0, time.monotonic() - begin_s - 0.01)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lambda: all_s
    finally:
        ended.set()
        thread.join()
