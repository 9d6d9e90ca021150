"""A Valkey or Redis server without persistence, and a link to it that carries so many bytes per second each way."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SERVER", "SlowLink", "server_in", "slow_link"]

SERVER = shutil.which("valkey-server") or shutil.which("redis-server")
START_S = 30.0
PIECE_BYTES = 16_384
BURST_S = 0.01
"""An idle link carries this much at once."""

_BUFFER_BYTES = 65_536


class SlowLink:
    """A proxy to a unix socket. `bytes_per_s`: over all connections together, each way; may be set at any time."""

    def __init__(self, target: Path) -> None:
        self.bytes_per_s = 1e12
        self._target = target
        self._free_s = [0.0, 0.0]  # when each way has carried what it took
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._target))
                for link in (near, far):
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                for way, ends in enumerate(((near, far), (far, near))):
                    threading.Thread(target=self._carry, args=(way, *ends), daemon=True).start()

    def _carry(self, way: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                with self._lock:
                    begin_s = max(self._free_s[way], time.monotonic() - BURST_S)
                    self._free_s[way] = begin_s + len(piece) / self.bytes_per_s
                    wait_s = self._free_s[way] - time.monotonic()
                time.sleep(max(0.0, wait_s))
                target.sendall(piece)
        for link in (source, target):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


@contextmanager
def server_in(folder: Path) -> Iterator[Path]:
    """A server with its socket in a folder. Yields the socket."""
    assert SERVER is not None
    path = folder / "server.socket"
    command = (SERVER, "--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--save", "")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + START_S
        while not path.exists():
            if server.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{SERVER} does not start")
            time.sleep(0.02)
        yield path
    finally:
        server.kill()
        server.wait()


@contextmanager
def slow_link(folder: Path) -> Iterator[SlowLink]:
    """A server with its socket in a folder, and a link to it."""
    with server_in(folder) as path, contextlib.closing(SlowLink(path)) as link:
        yield link
