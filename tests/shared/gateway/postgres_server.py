"""A real PostgreSQL server for tests, under a user that is not root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from resp_servers import free_port

__all__ = ["PostgresServer", "has_postgres"]

_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
_INITDB = shutil.which("initdb", path=os.pathsep.join(map(str, _FOLDERS))) or shutil.which("initdb")
has_postgres = _INITDB is not None
_USER = "postgres"


class PostgresServer:
    """A server on a loopback port, with its files in `folder`, which it makes."""

    def __init__(self, folder: Path) -> None:
        assert _INITDB is not None
        self._programs = Path(_INITDB).parent
        self._folder = folder
        self.port = free_port()
        self._numbers = count(1)
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, _USER)
            folder.parent.chmod(0o711)  # so that the user reaches its own folder
        made = ["initdb", "-D", str(folder / "data"), "-U", "radixkv", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(self._command(made), check=True, stdout=subprocess.DEVNULL, timeout=120)
        self.start()

    def new_database(self) -> str:
        """Make an empty database; return its URL."""
        import psycopg

        name = f"test{next(self._numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def start(self) -> None:
        """Start it; returns once it accepts connections."""
        import psycopg

        place = ["-D", str(self._folder / "data"), "-k", str(self._folder), "-h", "127.0.0.1", "-p", str(self.port)]
        settings = ["-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=50"]
        self.process = subprocess.Popen(
            self._command(["postgres", *place, *settings]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until_s = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self._url("postgres"), connect_timeout=2).close()
                return
            except psycopg.Error:
                assert self.process.poll() is None, "postgres has ended"
                assert time.monotonic() < until_s, "postgres does not answer"
                time.sleep(0.05)

    def stop(self, with_signal: signal.Signals = signal.SIGINT) -> None:
        """End it, by default disconnecting its clients."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
            self.process.wait(timeout=60)

    def _command(self, arguments: Sequence[str]) -> list[str]:
        program = [str(self._programs / arguments[0]), *arguments[1:]]
        return (
            ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *program]
            if os.geteuid() == 0
            else program
        )

    def _url(self, name: str) -> str:
        return f"postgresql://radixkv@127.0.0.1:{self.port}/{name}"
