"""Faults: of which process, and what is done to it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.faults.cluster import EVERYWHERE, GATEWAY_HOSTS, POSTGRES_HOST, Cluster, some
from bench.faults.stack import GATEWAY, SERVICE, WORKER_A, WORKER_B, Deployment
from radixkv.gateway.storage.owners import LEASE_S

__all__ = ["CLUSTER_QUICK", "CUT", "KILL", "LONG", "RESTART", "SHORT", "Fault", "cluster_faults", "faults"]

KILL, RESTART, SHORT, LONG = "kill -9", "SIGTERM", "stopped for half a TTL", "stopped for two TTLs"
FLUSH, BOTH = "flushed", "kill -9, and PostgreSQL"
CUT, CUT_GATEWAYS, CUT_POSTGRES = "host cut off", "host cut off from gateways", "host cut off from PostgreSQL"
_CUTS = {CUT: EVERYWHERE, CUT_GATEWAYS: GATEWAY_HOSTS, CUT_POSTGRES: (POSTGRES_HOST,)}
AHEAD, BEHIND = "clock 90 s ahead", "clock 90 s behind"
_CLOCKS = {AHEAD: (signal.SIGUSR1, signal.SIGUSR2), BEHIND: (signal.SIGUSR2, signal.SIGUSR1)}
_LONGER_S = 2 * LEASE_S
"""For which a host is cut off, or its clock is wrong: its gateway's lease has long ended, if it can."""

_FIRST = (
    *((name, KILL) for name in (SERVICE, WORKER_A, GATEWAY, WORKER_B)),
    *((name, RESTART) for name in (SERVICE, WORKER_A, WORKER_B)),
    *((name, LONG) for name in (SERVICE, WORKER_A)),
    (WORKER_B, SHORT),
)
_REST = ((SERVICE, SHORT), (WORKER_A, SHORT), (WORKER_B, LONG), (GATEWAY, SHORT), (GATEWAY, LONG), (GATEWAY, RESTART))
_CLUSTER_FIRST = (
    ("gateway", KILL),
    ("PostgreSQL", RESTART),
    ("Redis", FLUSH),
    ("service", KILL),
    ("gateway", CUT),
    ("gateway", AHEAD),
)
CLUSTER_QUICK = len(_CLUSTER_FIRST)
_CLUSTER_REST = (
    *((name, KILL) for name in ("worker", "PostgreSQL", "Redis")),
    *((name, RESTART) for name in ("gateway", "service", "worker")),
    *((name, BOTH) for name in ("gateway", "worker")),
    ("gateway", CUT_POSTGRES),
    ("service", CUT_GATEWAYS),
    *((name, CUT) for name in ("service", "PostgreSQL", "Redis")),
    *((name, BEHIND) for name in ("gateway", "service", "worker")),
    *((name, pause) for pause in (SHORT, LONG) for name in ("gateway", "service", "worker", "PostgreSQL", "Redis")),
)


class Fault(NamedTuple):
    """A fault and its process."""

    target: str
    action: str

    @property
    def kind(self) -> str:
        """The process, of equal ones any."""
        return self.target.rstrip(" 0123456789")

    @property
    def ends(self) -> bool:
        """Whether the process ends, and another is started."""
        return self.action in (KILL, RESTART, BOTH)

    def strike(self, stack: Deployment, ttl_s: float) -> None:
        """Inject it; a stopped process runs again when this returns."""
        role = stack.roles[self.target]
        if self.action == KILL:
            role.send(signal.SIGKILL)
        elif self.action == RESTART:
            role.send(role.ends_by)
        elif self.action == BOTH:
            for each in (stack.roles["PostgreSQL"], role):
                each.send(signal.SIGKILL)
        elif self.action == FLUSH:
            assert isinstance(stack, Cluster)
            stack.flush()
        elif self.action in _CUTS:
            assert isinstance(stack, Cluster)
            with stack.cut(self.target, _CUTS[self.action]):
                time.sleep(_LONGER_S)
        elif self.action in _CLOCKS:
            there, back = _CLOCKS[self.action]
            role.send(there)
            time.sleep(_LONGER_S)
            role.send(back)
        else:
            role.send(signal.SIGSTOP)
            try:
                time.sleep(self.pause_s(role.lease_s or ttl_s))
            finally:
                role.send(signal.SIGCONT)

    def pause_s(self, ttl_s: float) -> float:
        """Time for which the process is stopped."""
        return {SHORT: ttl_s / 2, LONG: 2 * ttl_s}.get(self.action, 0.0)


def faults(seed: int) -> Iterator[Fault]:
    """Every kind in turn; in random order from the second time on."""
    source = random.Random(seed)
    kinds = [Fault(*each) for each in (*_FIRST, *_REST)]
    while True:
        yield from kinds
        source.shuffle(kinds)


def cluster_faults(seed: int, has_hosts: bool) -> Iterator[Fault]:
    """As `faults`, of a cluster: each time some process of the kind. `has_hosts`: which can be cut off."""
    source = random.Random(seed)
    kinds = [(kind, action) for kind, action in (*_CLUSTER_FIRST, *_CLUSTER_REST) if has_hosts or action not in _CUTS]
    while True:
        yield from (Fault(some(kind, source), action) for kind, action in kinds)
        source.shuffle(kinds)
