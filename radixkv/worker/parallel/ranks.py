"""The processes of the other ranks: rank 0 starts them, sends each the calls that all make, and notices when one ends.

They end with rank 0's connection, even if that is killed, and not by a signal to its process group.
"""

from __future__ import annotations

import logging
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from radixkv.worker.errors import ModelError
from radixkv.worker.parallel.seat import Seat

__all__ = ["Ranks"]

_LOG = logging.getLogger(__name__)
_END_S, _FAULT_S = 5.0, 1.0


class Ranks:
    """Ranks 1 to N - 1.

    Args:
        num_ranks: N, with rank 0.
        num_threads: of each rank's OpenMP team.
        options: of their runners.

    Attributes:
        fault: which rank has ended although this one goes on; empty while all live.
    """

    def __init__(self, num_ranks: int, num_threads: int, options: Mapping[str, Any]) -> None:
        self.fault = ""
        self._num_ranks, self._num_threads = num_ranks, num_threads
        self._folder = Path(tempfile.mkdtemp(prefix="radixkv-ranks-"))
        self._is_closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for rank in range(1, num_ranks):
            near, far = socket.socketpair()
            command = (sys.executable, "-P", "-m", "radixkv.worker.parallel.rank", str(far.fileno()))
            with far:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(far.fileno(),), process_group=0)
            self._processes.append(process)
            self._connections.append(Connection(near.detach()))
            threading.Thread(target=self._watch, args=(rank, process), name=f"radixkv-rank-{rank}", daemon=True).start()
            with suppress(OSError):  # it has ended already, and `await_ready` raises
                self._connections[-1].send((self.seat(rank), options))

    def await_ready(self) -> None:
        """Wait until all are about to join the group, where the end of one is not noticed, nor a signal.

        Raises:
            ModelError: a rank has ended.
        """
        self._receive()

    def await_fault(self) -> str:
        """The fault, which may come a moment after its consequences; empty if none does."""
        until_s = time.monotonic() + _FAULT_S
        while not self.fault and time.monotonic() < until_s:
            time.sleep(0.01)
        return self.fault

    def seat(self, rank: int) -> Seat:
        """Where that rank sits."""
        return Seat(rank, self._num_ranks, self._folder, self._num_threads)

    def send(self, call: str, *args: Any) -> None:
        """Have every rank make this call, after those before.

        Raises:
            ModelError: a rank has ended.
        """
        message = pickle.dumps((call, args, False))
        self._send_all(message)

    def ask(self, call: str, *args: Any) -> list[Any]:
        """`send`, and return the results."""
        self._send_all(pickle.dumps((call, args, True)))
        return self._receive()

    def _receive(self) -> list[Any]:
        try:
            return [connection.recv() for connection in self._connections]
        except (OSError, EOFError) as error:
            raise ModelError(self.fault or f"a rank of the model has ended: {error!r}") from error

    def close(self) -> None:
        """End them. May be repeated."""
        self._is_closing = True
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send_all(self, message: bytes) -> None:
        if self.fault:
            raise ModelError(self.fault)
        try:
            for connection in self._connections:
                connection.send_bytes(message)
        except OSError as error:
            raise ModelError(self.fault or f"a rank of the model has ended: {error!r}") from error

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of one; before `close`, it ends all others, so that none waits for it."""
        code = process.wait()
        if not self._is_closing:
            self.fault = self.fault or f"rank {rank} of the model has ended with code {code}"
            _LOG.error("%s", self.fault)
            for other in self._processes:
                other.kill()
