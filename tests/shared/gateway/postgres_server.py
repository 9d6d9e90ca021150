"""A real PostgreSQL server for tests, under a user that is not root."""

from __future__ import annotations

import signal
import subprocess
import time
from itertools import count
from pathlib import Path

from free_ports import free_port

from bench.common.postgres import SUPERUSER, has_postgres, make_cluster, postgres_command

__all__ = ["PostgresServer", "has_postgres"]


class PostgresServer:
    """A server on a loopback port, with its files in `folder`, which it makes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._numbers = count(1)
        make_cluster(folder)
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

        command = postgres_command(self._folder, self.port)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + 300
        while True:
            try:
                psycopg.connect(self._url("postgres"), connect_timeout=60).close()
                return
            except psycopg.Error:
                assert self.process.poll() is None, "postgres has ended"
                assert time.monotonic() < until_s, "postgres does not answer"
                time.sleep(0.05)

    def stop(self, with_signal: signal.Signals = signal.SIGINT) -> None:
        """End it, by default disconnecting its clients."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
            self.process.wait(timeout=300)

    def _url(self, name: str) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{name}"
