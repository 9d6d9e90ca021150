"""The Serve application of a cluster.

clients ── Serve's proxies ──> gateways ── Route ──> cache services, one on each node with a worker
                                   └────── Generate, straight ──> workers ── Steps ──^
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.app import create_app
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.params import SamplingDefaults
from radixkv.net.tls import Security
from radixkv.ray.autoscaling import by_backlog
from radixkv.ray.replicas import ServiceAddresses, WorkerReplica
from radixkv.service.config import ServiceConfig
from radixkv.stores.settings import StoreSettings
from radixkv.worker.run import WorkerConfig
from radixkv.worker.threads import spin_environment

__all__ = ["ClusterSettings", "app", "make_app"]

_HEALTH_S, _SPARE_S = 5.0, 10.0
_DELAYS = {"upscale_delay_s": 10.0, "downscale_delay_s": 60.0, "look_back_period_s": 15.0}
"""Before workers are added or ended, and of the backlogs that count."""

_PARTS = {
    "worker": WorkerConfig,
    "service": ServiceConfig,
    "gateway": GatewayConfig,
    "security": Security,
    "credentials": Credentials,
    "store": StoreSettings,
    "sampling": SamplingDefaults,
}
"""Settings within settings."""

DEFAULT_PORT = 50051


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of a cluster.

    Attributes:
        workers: their number; or the least and the most, scaled by the time that prompts wait.
        gateways: their number. Several need a `gateway.state_file` in PostgreSQL to serve each other's stored responses.
        worker_resources: Ray's options for a worker's actor: ``{"num_gpus": 1}`` for one GPU each; None: one CPU.
        host: where services and workers listen: ``"127.0.0.1"`` on one machine; None: each node's address, which needs keys or
            `allow_anonymous` in `worker.security` and `service.security`.
        port: of the cache service of each node.
        worker, service, gateway: of each. Their addresses, and the worker's pool, are chosen here.
    """

    workers: int | tuple[int, int] = 1
    gateways: int = 1
    worker_resources: Mapping[str, float] | None = None
    host: str | None = "127.0.0.1"
    port: int = DEFAULT_PORT
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)


def make_app(settings: ClusterSettings) -> serve.Application:
    """The application of these settings, for `serve.run`.

    Raises:
        InvalidArgumentError: no worker, or more at least than at most; no gateway; resources that Ray does not know; a disk
            level, of which each worker would need a folder of its own.
    """
    config, workers = settings.worker, settings.workers
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= most:
        raise InvalidArgumentError("workers", workers, "at least 1, or two numbers in order")
    if settings.gateways < 1:
        raise InvalidArgumentError("gateways", settings.gateways, "at least 1")
    if config.store is not None and config.store.disk is not None:
        raise InvalidArgumentError(
            "worker.store.disk", str(config.store.disk[0]), "none; a remote level serves all workers"
        )
    scale: dict[str, Any] = {"num_replicas": workers}
    if not isinstance(workers, int):
        policy = AutoscalingPolicy(policy_function=by_backlog)
        scale = {
            "autoscaling_config": AutoscalingConfig(min_replicas=least, max_replicas=most, policy=policy, **_DELAYS)
        }
    resources = settings.worker_resources or {"num_cpus": 1}
    try:
        replicas = serve.deployment(
            name="Worker",
            ray_actor_options={**resources, "runtime_env": {"env_vars": spin_environment()}},
            health_check_period_s=_HEALTH_S,
            graceful_shutdown_timeout_s=config.drain_s + _SPARE_S,
            **scale,
        )(WorkerReplica)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError("worker_resources", dict(resources), f"what Ray gives an actor: {error}") from None
    front = settings.gateway

    def build() -> FastAPI:  # Serve takes functions for builders, and calls it in each replica
        return create_app(RoutedGenerator(ServiceAddresses(), credentials=config.credentials), front)

    gateways = serve.deployment(
        name="Gateway",
        num_replicas=settings.gateways,
        max_ongoing_requests=front.max_requests + front.max_waiting,
        graceful_shutdown_timeout_s=front.drain_s + _SPARE_S,
    )(serve.ingress(build)())
    return gateways.bind(replicas.bind(config, settings.service, settings.host, settings.port))


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """The application of a `serve deploy` file, ``import_path: radixkv.ray.app:app``, from its ``args``.

    Args:
        arguments: attributes of `ClusterSettings`, with ``worker``, ``service`` and ``gateway`` as mappings of theirs.

    Raises:
        InvalidArgumentError: an unknown argument.
    """
    settings: ClusterSettings = _made("args", ClusterSettings, arguments)
    return make_app(settings)


def _made(name: str, kind: Any, values: Mapping[str, Any]) -> Any:
    """The settings with these attributes: mappings become settings of their own, and names of files paths."""
    made = dict(values)
    for attribute, value in values.items():
        told = f"{name}.{attribute}"
        if attribute not in kind.__dataclass_fields__:
            raise InvalidArgumentError(told, value, f"an attribute of {kind.__name__}")
        if attribute in _PARTS and isinstance(value, Mapping):
            made[attribute] = _made(told, _PARTS[attribute], value)
        elif attribute == "adapters":
            made[attribute] = {adapter: Path(folder) for adapter, folder in value.items()}
        elif attribute.endswith("_file") and isinstance(value, str) and "://" not in value:
            made[attribute] = Path(value)
        elif isinstance(value, list):
            made[attribute] = tuple(value)
    return kind(**made)
