"""`radixkv worker`: a decode worker for a cache service."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from radixkv.cli.commands.gateway import Front, add_gateway_flags
from radixkv.cli.flags import (
    DEFAULT_WORKER_ADDRESS,
    add_command,
    add_metrics_flag,
    add_service_flag,
    describe_metrics,
    say,
)
from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.cli.security_flags import add_client_flags, add_server_flags, client_credentials, security_of
from radixkv.net.signals import exit_at_interrupt
from radixkv.util.heaps import collector_at_rest, keep_heaps_small

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from radixkv.worker.run import Worker

__all__ = ["add", "describe_addresses"]


def add(commands: Any) -> None:
    """Add the command."""
    worker = add_command(commands, "worker", _run, "start a decode worker for a cache service")
    add_service_flag(worker)
    worker.add_argument(
        "--listen", metavar="ADDRESS", default=DEFAULT_WORKER_ADDRESS, help="where it serves (default %(default)s)"
    )
    worker.add_argument(
        "--advertise",
        metavar="ADDRESS",
        help="where gateways of other hosts reach it (default: the address of --listen)",
    )
    add_server_flags(worker)
    add_client_flags(worker)
    add_model_flags(worker)
    worker.add_argument(
        "--http", metavar="ADDRESS", help="serve the OpenAI and Anthropic APIs over HTTP too, at host:port"
    )
    add_gateway_flags(worker)
    add_metrics_flag(worker)


@exit_at_interrupt()
def _run(options: argparse.Namespace) -> int:
    keep_heaps_small()
    credentials = client_credentials(options)
    config = replace(
        worker_config(options, options.service, options.listen, options.drain),
        security=security_of(options),
        credentials=credentials,
        advertise=options.advertise,
    )
    from radixkv.generation.metrics import latency_metrics, worker_metrics
    from radixkv.net.metrics import free_address, serve_metrics
    from radixkv.worker.run import run_worker

    if options.metrics:
        free_address(options.metrics)  # before the long work of loading a model

    @contextmanager
    def beside(worker: Worker) -> Iterator[None]:
        def collect() -> Iterator[Metric]:
            stats = worker.engine.stats()
            return chain(worker_metrics(stats), latency_metrics(stats.engine))

        with serve_metrics(options.metrics, collect), front.beside(worker):
            yield

    front = Front(options, options.service, credentials)
    front.import_code()

    def on_ready(worker: Worker) -> None:
        where = describe_addresses(worker, options.service)
        say(f"{where}{front.line}{describe_metrics(options)}\nCtrl-C stops it.")

    with collector_at_rest():
        run_worker(config, on_ready, beside)
    return 0


def describe_addresses(worker: Worker, service_address: str) -> str:
    """A worker's model, its block store, and the addresses of it and its cache service."""
    store = f"\n  block store    {worker.store}" if worker.store else ""
    return f"{describe(worker)}{store}\n  generation     {worker.address}\n  cache service  {service_address}"
