"""`radixkv worker`: a decode worker for a cache service."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import DEFAULT_WORKER_ADDRESS, add_command, add_service_flag, say
from radixkv.cli.gateway import Front, add_gateway_flags
from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.cli.security_flags import add_client_flags, add_server_flags, client_credentials, security_of
from radixkv.service.heaps import keep_heaps_small

if TYPE_CHECKING:
    from radixkv.worker.run import Worker

__all__ = ["add", "describe_addresses"]


def add(commands: Any) -> None:
    """Add the command."""
    worker = add_command(commands, "worker", _run, "start a decode worker for a cache service")
    add_service_flag(worker)
    worker.add_argument(
        "--listen", metavar="ADDRESS", default=DEFAULT_WORKER_ADDRESS, help="where it serves (default %(default)s)"
    )
    add_server_flags(worker)
    add_client_flags(worker)
    add_model_flags(worker)
    worker.add_argument(
        "--http", metavar="ADDRESS", help="serve the OpenAI and Anthropic APIs over HTTP too, at host:port"
    )
    add_gateway_flags(worker)


def _run(options: argparse.Namespace) -> int:
    keep_heaps_small()
    credentials = client_credentials(options)
    config = replace(
        worker_config(options, options.service, options.listen, options.drain),
        security=security_of(options),
        credentials=credentials,
    )
    from radixkv.worker.run import run_worker

    front = Front(options, options.service, credentials)

    def on_ready(worker: Worker) -> None:
        say(f"{describe_addresses(worker, options.service)}{front.line}\nCtrl-C stops it.")

    run_worker(config, on_ready, front.beside)
    return 0


def describe_addresses(worker: Worker, service_address: str) -> str:
    """What a worker serves, and where it and its cache service are reached."""
    return f"{describe(worker)}\n  generation     {worker.address}\n  cache service  {service_address}"
