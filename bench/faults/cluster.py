"""Several equal gateways over several services and their workers, with the state of all in PostgreSQL and Redis.

    host 1: gateway 1, service 1 <── worker 2           any gateway reaches any service and worker, and the state
    host 2: gateway 2, service 2 <── workers 1, 3
    host 3: gateway 3
    two more: PostgreSQL; Redis, for limits and live text

Hosts are network namespaces where this machine allows them; otherwise all are its loopback interface, which cannot be cut.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.common.postgres import SUPERUSER, has_postgres, make_cluster, postgres_command
from bench.faults.hosts import OUTSIDE, Hosts
from bench.faults.stack import BLOCK_SIZE, Deployment, Role, free_port
from radixkv.gateway.storage.owners import LEASE_S

__all__ = ["EVERYWHERE", "GATEWAY_HOSTS", "POSTGRES_HOST", "Cluster", "missing_program", "some"]

SERVICES, WORKERS, GATEWAYS = 2, 3, 3
_POSTGRES, _REDIS = "PostgreSQL", "Redis"
_REDIS_PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
_CLOCKED = (sys.executable, "-P", str(Path(__file__).with_name("clocked.py")))

GATEWAY_HOSTS = tuple(f"host {number}" for number in range(1, GATEWAYS + 1))
POSTGRES_HOST, _REDIS_HOST = "host of PostgreSQL", "host of Redis"
EVERYWHERE = (*GATEWAY_HOSTS, POSTGRES_HOST, _REDIS_HOST, OUTSIDE)


def missing_program() -> str:
    """The name of a program that a cluster needs and this machine lacks; empty if it has all."""
    return "PostgreSQL" if not has_postgres else "redis-server" if _REDIS_PROGRAM is None else ""


def some(kind: str, source: random.Random) -> str:
    """Some process of a kind."""
    number = {"service": SERVICES, "worker": WORKERS, "gateway": GATEWAYS}.get(kind)
    return kind if number is None else f"{kind} {source.randint(1, number)}"


class Cluster(Deployment):
    """As above.

    Args:
        folder: for sockets, logs and state.
        model: a folder.
        lease_ttl_s: of the services.
        num_blocks: of each pool.
        dtype: of weights and KV.

    Attributes:
        hosts: None where this machine allows none.
    """

    def __init__(self, folder: Path, model: str, *, lease_ttl_s: float, num_blocks: int, dtype: str) -> None:
        assert _REDIS_PROGRAM is not None
        self.hosts = Hosts(EVERYWHERE[:-1]) if Hosts.are_possible() else None
        self._folder = folder
        self._host_of: dict[str, str] = {}
        database, redis, state = self._state_roles(_REDIS_PROGRAM)
        anyone = ("--allow-anonymous",)
        services, workers, gateways = [], [], []
        beside, over = [], list[str]()  # addresses of the services, for workers and for gateways
        for number, host in enumerate(GATEWAY_HOSTS[:SERVICES], 1):
            beside.append(f"unix:{folder}/service-{number}")
            over += ["--service", self._free_address(host)]
            line = ("serve", "--listen", beside[-1], "--listen", over[-1], *anyone, "--lease-ttl", str(lease_ttl_s))
            services.append(self._role(f"service {number}", host, line))
        exact = ("--dtype", dtype, "--device", "cpu", "--deterministic")
        pool = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE))
        self.pools = []
        for number in range(1, WORKERS + 1):
            service, host = beside[number % SERVICES], GATEWAY_HOSTS[number % SERVICES]
            self.pools.append((service, f"pool-{number}"))
            self.worker = self._free_address(host)
            place = ("--service", service, "--pool", f"pool-{number}", "--listen", self.worker, *anyone)
            workers.append(self._role(f"worker {number}", host, ("worker", *place, "--model", model, *exact, *pool)))
        self.urls = []
        for number, host in enumerate(GATEWAY_HOSTS, 1):
            listen = self._free_address(host)
            self.urls.append(f"http://{listen}")
            kept = (*state, "--worker-wait", "60", "--model-name", "typewriter")
            line = ("gateway", *over, *kept, "--listen", listen, *anyone)
            gateways.append(self._role(f"gateway {number}", host, line, lease_s=LEASE_S))
        super().__init__([database, redis, *services], workers, gateways)

    def _state_roles(self, redis_program: str) -> tuple[Role, Role, tuple[str, ...]]:
        """PostgreSQL, Redis, and the gateways' flags for them."""
        folder, (host, port) = self._folder, self._free_address(POSTGRES_HOST).split(":")
        make_cluster(folder / "postgres")
        database = self._role(
            _POSTGRES,
            POSTGRES_HOST,
            (),
            program=postgres_command(folder / "postgres", int(port), host),
            ready="ready to accept connections",
            ends_by=signal.SIGINT,
            lease_s=LEASE_S,
        )
        self._redis = self._free_address(_REDIS_HOST)
        bind, redis_port = self._redis.split(":")
        redis = self._role(
            _REDIS,
            _REDIS_HOST,
            ("--bind", bind, "--port", redis_port, "--protected-mode", "no", "--save", "", "--dir", str(folder)),
            program=(redis_program,),
            ready="Ready to accept connections",
            lease_s=LEASE_S,
        )
        state = f"postgresql://{SUPERUSER}@{host}:{port}/postgres"
        return database, redis, ("--state", state, "--shared", f"redis://{self._redis}")

    def _role(self, name: str, host: str, line: Sequence[str], program: Sequence[str] = _CLOCKED, **more: Any) -> Role:
        self._host_of[name] = host
        prefix = self.hosts.prefix(host) if self.hosts is not None else ()
        log = self._folder / f"{name.replace(' ', '-')}.log"
        return Role(name, line, log, program=(*prefix, *program), **more)

    def _free_address(self, host: str) -> str:
        return f"{self.hosts.addresses[host] if self.hosts is not None else '127.0.0.1'}:{free_port()}"

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            if self.hosts is not None:
                entered.enter_context(self.hosts)
            super().__enter__()
            self._entered = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._entered.close()

    def flush(self) -> None:
        """Empty Redis."""
        host, port = self._redis.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16) == b"+OK\r\n"

    @contextmanager
    def cut(self, name: str, others: Sequence[str]) -> Iterator[None]:
        """The network between the host of a process and other hosts is cut during the block."""
        assert self.hosts is not None, "cuts are drawn where there are hosts"
        host = self._host_of[name]
        self.hosts.cut(host, others)
        try:
            yield
        finally:
            self.hosts.mend(host, others)
