"""The actors of a cluster: each node's cache service, and the workers.

A service is an actor of its own, so that its trees outlive a worker. Its name is its address: gateways read the addresses of
all services from the names, and a service that Ray restarts listens where it did before.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from radixkv.core.errors import UnavailableError
from radixkv.ray.numbers import ReplicaNumbers
from radixkv.service.config import ServiceConfig
from radixkv.service.server import ServiceThread
from radixkv.worker.run import Worker, WorkerConfig

__all__ = ["CacheNode", "ServiceAddresses", "WorkerReplica"]

_LOG = logging.getLogger(__name__)

_NAMESPACE = "radixkv"
"""Of the services' names, each its address."""

_IDLE_S, _LOOK_S = 300.0, 10.0
"""A service that no worker has used for so long ends, as after the application was deleted."""

_UNMEASURED_TOKENS_PER_S = 1000.0
"""Of a worker that has computed no prompt yet."""


class CacheNode:
    """The cache service of a node, which numbers the node's workers."""

    def __init__(self, config: ServiceConfig) -> None:
        self._service = ServiceThread(config).start()
        self._lock = threading.Lock()
        self._numbers = ReplicaNumbers(_IDLE_S)
        self._is_ending = False
        threading.Thread(target=self._end_when_idle, name="radixkv-idle", daemon=True).start()

    def use(self, replica: str, number: int | None = None) -> int:
        """Stay for another while. Returns the replica's number once the service listens.

        Args:
            replica: its id.
            number: the one that it has, if any.

        Raises:
            UnavailableError: the service is ending.
        """
        with self._lock:
            if self._is_ending:
                raise UnavailableError("the node's cache service is ending: start the worker again")
            return self._numbers.use(replica, number, time.monotonic())

    def _end_when_idle(self) -> None:
        time.sleep(_IDLE_S)
        while not self._is_ending:
            time.sleep(_LOOK_S)
            with self._lock:
                self._is_ending = self._numbers.are_idle(time.monotonic())
        self._service.stop()
        ray.kill(ray.get_runtime_context().current_actor)


class ServiceAddresses:
    """The addresses of the cluster's cache services, at each call; those of the last call while Ray cannot say."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def __call__(self) -> list[str]:
        try:
            actors = ray.util.list_named_actors(all_namespaces=True)
        except RayError as error:
            _LOG.warning("Ray does not name the cache services: %s", error)
        else:
            self._known = sorted(actor["name"] for actor in actors if actor["namespace"] == _NAMESPACE)
        return self._known


def _node_service(config: ServiceConfig) -> Any:
    """The service of this node, which is started if there is none."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    name = {"name": config.addresses[0], "namespace": _NAMESPACE, "get_if_exists": True, "lifetime": "detached"}
    actor = ray.remote(CacheNode).options(**name, scheduling_strategy=here, max_restarts=-1, num_cpus=0)
    return actor.remote(config)


class WorkerReplica:
    """A worker at the cache service of its node. Gateways reach it by gRPC, not through Serve.

    Args:
        config: of the worker, without addresses and the pool's name.
        service: of the node's cache service, without an address.
        host: where both listen; None: the node's address.
        port: of the service, the same on every node.
    """

    def __init__(self, config: WorkerConfig, service: ServiceConfig, host: str | None, port: int) -> None:
        host = host or ray.util.get_node_ip_address()
        address = f"{host}:{port}"
        self._service = _node_service(replace(service, addresses=(address,)))
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._number: int = ray.get(self._service.use.remote(self._replica))
        pool = f"worker-{self._number}"
        worker = Worker(replace(config, service=address, listen=f"{host}:0", pool_name=pool, show_progress=False))
        self._worker = worker.__enter__()

    def check_health(self) -> None:
        """Called by Serve now and then.

        Raises:
            UnavailableError: it can generate nothing more; Serve starts another.
        """
        self._service.use.remote(self._replica, self._number)
        if fault := self._worker.fault:
            raise UnavailableError(fault)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Seconds of computing that accepted prompts need."""
        load = self._worker.engine.load()
        return {"backlog_s": load.num_backlog_tokens / (load.tokens_per_s or _UNMEASURED_TOKENS_PER_S)}

    def __del__(self) -> None:
        """Called by Serve before it ends the replica: new work is refused, running replies go on to their end."""
        worker = getattr(self, "_worker", None)
        if worker is not None:  # it has started
            worker.drain(worker.config.drain_s)
            worker.__exit__(None, None, None)
