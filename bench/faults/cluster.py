"""Several equal gateways over several services and their workers, with the state of all in PostgreSQL and Redis.

gateway 1, 2, 3 (HTTP) ──> worker 2 ──────> service 1       state: PostgreSQL, limits and live text: Redis
                       ──> worker 1, 3 ───> service 2
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
from pathlib import Path

from bench.common.postgres import SUPERUSER, has_postgres, make_cluster, postgres_command
from bench.faults.stack import BLOCK_SIZE, Deployment, Role, free_port
from radixkv.gateway.storage.owners import LEASE_S

__all__ = ["Cluster", "missing_program", "some"]

SERVICES, WORKERS, GATEWAYS = 2, 3, 3
_POSTGRES, _REDIS = "PostgreSQL", "Redis"
_REDIS_PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")


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
    """

    def __init__(self, folder: Path, model: str, *, lease_ttl_s: float, num_blocks: int, dtype: str) -> None:
        assert _REDIS_PROGRAM is not None
        self._redis_port, database_port = free_port(), free_port()
        make_cluster(folder / "postgres")
        database = Role(
            _POSTGRES,
            (),
            folder / "postgres.log",
            program=postgres_command(folder / "postgres", database_port),
            ready="ready to accept connections",
            ends_by=signal.SIGINT,
            lease_s=LEASE_S,
        )
        redis = Role(
            _REDIS,
            ("--port", str(self._redis_port), "--save", "", "--dir", str(folder)),
            folder / "redis.log",
            program=(_REDIS_PROGRAM,),
            ready="Ready to accept connections",
            lease_s=LEASE_S,
        )
        addresses = [f"unix:{folder}/service-{number}" for number in range(1, SERVICES + 1)]
        services = [
            self._role(folder, f"service {number}", "serve", "--listen", address, "--lease-ttl", str(lease_ttl_s))
            for number, address in enumerate(addresses, 1)
        ]
        exact = ("--dtype", dtype, "--device", "cpu", "--deterministic")
        pool = ("--num-blocks", str(num_blocks), "--block-size", str(BLOCK_SIZE))
        workers = []
        self.pools = []
        for number in range(1, WORKERS + 1):
            address = addresses[number % SERVICES]
            self.pools.append((address, f"pool-{number}"))
            place = ("--service", address, "--pool", f"pool-{number}", "--listen", f"unix:{folder}/worker-{number}")
            workers.append(self._role(folder, f"worker {number}", "worker", *place, "--model", model, *exact, *pool))
        self.worker = f"unix:{folder}/worker-1"
        self.urls = []
        gateways = []
        for number in range(1, GATEWAYS + 1):
            port = free_port()
            self.urls.append(f"http://127.0.0.1:{port}")
            over = [word for address in addresses for word in ("--service", address)]
            state = f"postgresql://{SUPERUSER}@127.0.0.1:{database_port}/postgres"
            kept = ("--state", state, "--shared", f"redis://127.0.0.1:{self._redis_port}", "--worker-wait", "60")
            line = ("gateway", *over, *kept, "--listen", f"127.0.0.1:{port}", "--model-name", "typewriter")
            gateways.append(self._role(folder, f"gateway {number}", *line, lease_s=LEASE_S))
        super().__init__([database, redis, *services], workers, gateways)

    def flush(self) -> None:
        """Empty Redis."""
        with socket.create_connection(("127.0.0.1", self._redis_port)) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16) == b"+OK\r\n"

    @staticmethod
    def _role(folder: Path, name: str, *line: str, lease_s: float | None = None) -> Role:
        return Role(name, line, folder / f"{name.replace(' ', '-')}.log", lease_s=lease_s)
