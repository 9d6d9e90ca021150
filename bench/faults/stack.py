"""The processes of a deployment, and their restart whenever they end, as by systemd; `cluster` has one of several gateways.

    gateway (HTTP) ──> worker a ──┐
                       worker b ──┴──> service

A client of the gateway depends on the service, worker a and the gateway; one that uses worker b over gRPC on the service and b.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

__all__ = ["GATEWAY", "HTTP", "ROUTES", "SERVICE", "WORKER_A", "WORKER_B", "Deployment", "Role", "Stack", "free_port"]

SERVICE, WORKER_A, WORKER_B, GATEWAY = "service", "worker a", "worker b", "gateway"
HTTP, GRPC = "http", "grpc"
ROUTES = {SERVICE: (HTTP, GRPC), WORKER_A: (HTTP,), GATEWAY: (HTTP,), WORKER_B: (GRPC,)}
"""Clients affected by a fault of each process."""

START_S = 120.0
STOP_S = 60.0
_RESTART_S = 0.1
_LOOK_S = 0.02
_CLI = (sys.executable, "-P", "-m", "radixkv")
_READY = "Ctrl-C stops it"
BLOCK_SIZE = 16


class Role:
    """One place of the deployment: a command line, its current process, and its earlier ones.

    Args:
        name: of the place.
        arguments: of the program.
        log: file for its output.
        program: `radixkv` by default.
        ready: what its output has once it serves.
        ends_by: the signal at which it ends in an orderly way.
        lease_s: after so long without a sign others count it as gone; None: the lease of the deployment.

    Attributes:
        num_starts: number of processes so far. started_s: when the current one was started.
        endings: exit codes of the ended ones.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        program: Sequence[str] = _CLI,
        ready: str = _READY,
        ends_by: signal.Signals = signal.SIGTERM,
        lease_s: float | None = None,
    ) -> None:
        self.name = name
        self.ends_by = ends_by
        self.lease_s = lease_s
        self.num_starts, self.started_s = 0, 0.0
        self.endings: Counter[int] = Counter()
        self._command = [*program, *arguments]
        self._ready = ready
        self._log = log
        self._offset = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Of the current process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All output of its processes."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start a process; returns at once."""
        with self._lock:
            self._offset = self._log.stat().st_size if self._log.exists() else 0
            environ = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
            with self._log.open("ab") as log:
                # In a separate session: the bench handles Ctrl-C at the terminal.
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, start_new_session=True, env=environ
                )
            self.num_starts, self.started_s = self.num_starts + 1, time.monotonic()

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the current process reports that it serves.

        Raises:
            RuntimeError: it did not, or it ended; with its output.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.is_ready:
                return
            time.sleep(_LOOK_S)
        raise RuntimeError(f"{self.name} is not ready after {timeout_s:g} s:\n{self.log[-2000:]}")

    @property
    def is_ready(self) -> bool:
        """Whether the current process has reported that it serves."""
        with self._lock:
            offset = self._offset
        return self._ready in self._log.read_bytes()[offset:].decode(errors="replace")

    def ended(self) -> bool:
        """Whether the process has ended by itself or by a fault; for the supervisor."""
        with self._lock:
            code = self._process.poll() if self._process is not None else None
            if code is None or self._stopped:
                return False
            self.endings[code] += 1
            return True

    def send(self, number: signal.Signals) -> None:
        """Send the current process a signal, its children too if it stops or continues them; nothing if it has ended."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                return
            self._process.send_signal(number)
            if number in (signal.SIGSTOP, signal.SIGCONT):
                for child in psutil.Process(self._process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.send_signal(number)

    def stop(self) -> int:
        """Stop it for good, as a person would. Returns the exit code."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(self.ends_by)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -signal.SIGKILL

    def kill(self) -> None:
        """Kill it at once, for good."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
        if self._process is not None:
            self._process.wait()


class Deployment:
    """Processes, a context manager. Ended ones are restarted after a tenth of a second.

    Args:
        groups: started in this order, those of a group at the same time.

    Attributes:
        roles: all of them, by name.
        urls: of the gateways.
        worker: address for clients over gRPC.
        pools: addresses of services, each with the name of a pool.
    """

    urls: Sequence[str]
    worker: str
    pools: Sequence[tuple[str, str]]

    def __init__(self, *groups: Sequence[Role]) -> None:
        self._groups = groups
        self.roles = {role.name: role for group in groups for role in group}
        self._ending = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        try:
            for group in self._groups:
                for role in group:
                    role.start()
                for role in group:
                    role.wait_ready()
            self._supervisor.start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def stop(self) -> dict[str, int]:
        """Stop all processes in a person's order, the gateways first. Returns exit codes."""
        self._end_supervision()
        return {role.name: role.stop() for group in reversed(self._groups) for role in group}

    def wait_ready(self) -> None:
        """Wait until every place has a serving process."""
        for role in self.roles.values():
            role.wait_ready()

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory of each process."""
        return {name: psutil.Process(role.pid).memory_info().rss for name, role in self.roles.items()}

    def num_half_closed(self) -> dict[str, int]:
        """TCP connections of each process that are closed by the other end but still open at its own."""
        return {
            name: sum(
                connection.status == psutil.CONN_CLOSE_WAIT
                for connection in psutil.Process(role.pid).net_connections(kind="tcp")
            )
            for name, role in self.roles.items()
        }

    def num_files(self) -> dict[str, int]:
        """Open file descriptors of each process, including sockets."""
        return {name: psutil.Process(role.pid).num_fds() for name, role in self.roles.items()}

    def _supervise(self) -> None:
        while not self._ending.wait(_LOOK_S):
            for role in self.roles.values():
                if role.ended() and not self._ending.wait(_RESTART_S):
                    role.start()

    def _end_supervision(self) -> None:
        self._ending.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()

    def _kill(self) -> None:
        """Kill all at once. A second Ctrl-C must not leave half of them: signals wait until they have ended."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._end_supervision()
            for role in self.roles.values():
                role.kill()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Stack(Deployment):
    """A service, two workers and a gateway in front of the first.

    Args:
        folder: for sockets, logs and the gateway's state.
        model: a folder.
        lease_ttl_s: of the service.
        num_blocks: of each pool.
        dtype: of weights and KV.

    Attributes:
        service: address.
    """

    def __init__(self, folder: Path, model: str, *, lease_ttl_s: float, num_blocks: int, dtype: str) -> None:
        port = free_port()
        self.urls = (f"http://127.0.0.1:{port}",)
        self.service, worker_a, self.worker = (f"unix:{folder}/{name}" for name in ("service", "a", "b"))
        self.pools = ((self.service, "a"), (self.service, "b"))
        pool = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE))
        exact = ("--dtype", dtype, "--device", "cpu", "--deterministic")
        worker = ("worker", "--service", self.service, "--model", model, *exact, *pool)
        arguments = {
            SERVICE: ("serve", "--listen", self.service, "--lease-ttl", str(lease_ttl_s)),
            WORKER_A: (*worker, "--listen", worker_a, "--pool", "a"),
            WORKER_B: (*worker, "--listen", self.worker, "--pool", "b"),
            GATEWAY: (
                *("gateway", "--worker", worker_a, "--service", self.service, "--pool", "a"),
                *(
                    "--listen",
                    f"127.0.0.1:{port}",
                    "--state",
                    str(folder / "state.sqlite"),
                    "--worker-wait",
                    "60",
                    "--model-name",
                    "typewriter",
                ),
            ),
        }
        roles = {name: Role(name, line, folder / f"{name.replace(' ', '-')}.log") for name, line in arguments.items()}
        super().__init__([roles[SERVICE]], [roles[WORKER_A], roles[WORKER_B]], [roles[GATEWAY]])


def free_port() -> int:
    """A free port below those that connections get, so that none takes it before a server does, or while one is away."""
    while True:
        port = random.SystemRandom().randrange(10_240, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
