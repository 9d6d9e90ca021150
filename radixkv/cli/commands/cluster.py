"""`radixkv cluster`: workers, a cache service and gateways on this machine, on Ray Serve."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.cli.commands.gateway import DEFAULT_HTTP_ADDRESS, add_gateway_flags, gateway_config
from radixkv.cli.flags import add_cache_flags, add_command, cache_settings, say, say_stage
from radixkv.cli.model_flags import add_model_flags, worker_config
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.net.addresses import parse_address
from radixkv.net.signals import StopSignals, exit_at_interrupt

if TYPE_CHECKING:
    from radixkv.ray.app import ClusterSettings

__all__ = ["add"]

_SPARE_CPUS = 4
"""Of Ray's places, for its own actors and the gateways."""

_WAIT_S = 30.0
"""Of a request for a worker."""

_STORE_BYTES = 100_000_000
"""Of Ray's object store, through which no token passes."""


def add(commands: Any) -> None:
    """Add the command."""
    cluster = add_command(
        commands, "cluster", _run, "start workers, a cache service and gateways on this machine, on Ray Serve"
    )
    cluster.add_argument("what", choices=["up"], metavar="up", help="start them, and stop them at Ctrl-C")
    cluster.add_argument(
        "--workers",
        type=_workers,
        default=2,
        metavar="N|LEAST:MOST",
        help="their number, or its bounds: it follows the time that prompts wait (default %(default)s)",
    )
    cluster.add_argument(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="several need --state postgresql://… to serve each other's stored responses (default %(default)s)",
    )
    cluster.add_argument(
        "--http",
        metavar="ADDRESS",
        default=DEFAULT_HTTP_ADDRESS,
        help="where the OpenAI and Anthropic APIs are served (default %(default)s)",
    )
    cluster.add_argument(
        "--gpus", type=float, default=0.0, metavar="N", help="of each worker, or a part of one (default: none)"
    )
    cluster.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="TOML of keys, their tenants and rights; without it every client may do everything",
    )
    cluster.add_argument(
        "--service-port",
        type=int,
        default=50051,
        metavar="PORT",
        help="where the cache service listens, on this machine alone (default %(default)s)",
    )
    cluster.set_defaults(tls_cert=None, tls_key=None, allow_anonymous=False, allow_plaintext=False, worker_wait=_WAIT_S)
    add_model_flags(cluster)
    add_cache_flags(cluster)
    add_gateway_flags(cluster)


def _workers(text: str) -> int | tuple[int, int]:
    least, colon, most = text.partition(":")
    try:
        return (int(least), int(most)) if colon else int(least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor two as in 1:4") from None


@exit_at_interrupt()
def _run(options: argparse.Namespace) -> int:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = parse_address(options.http)
    if address.path:
        raise InvalidArgumentError("--http", options.http, "host:port; Ray Serve has no unix sockets")
    address.require_free()
    address = address.with_port()
    settings = _settings(options)
    from radixkv.ray.app import make_app
    from radixkv.worker.loading.default_model import resolve_model

    application = make_app(settings)
    resolve_model(options.model)  # fetched once; a missing one is rejected before Ray starts
    say_stage("Ray")
    import ray
    from ray import serve

    most = settings.workers if isinstance(settings.workers, int) else settings.workers[1]
    with StopSignals() as signals:
        ray.init(
            num_cpus=most + settings.gateways + _SPARE_CPUS,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            log_to_driver=options.log_requests,
            logging_level=logging.WARNING,
        )
        try:
            serve.start(
                http_options={"host": address.host, "port": address.port}, logging_config={"log_level": "WARNING"}
            )
            say_stage("workers and gateways")
            try:
                serve.run(application, name="radixkv")
            except RuntimeError as error:
                raise UnavailableError(f"workers or gateways did not start, see --log-requests: {error}") from None
            say(f"OpenAI API on http://{address}/v1, chat page on http://{address}/")
            say(f"{options.workers} workers, {options.gateways} gateways; Ctrl-C stops them")
            signals.listen()
            signals.wait()
        finally:
            serve.shutdown()
            ray.shutdown()
    return 0


def _settings(options: argparse.Namespace) -> ClusterSettings:
    """The cluster's settings from the flags."""
    from radixkv.client import Credentials
    from radixkv.net.tls import Security
    from radixkv.service import ServiceConfig

    own_key = secrets.token_urlsafe()
    security = Security(keys_file=options.keys, own_key=own_key if options.keys else None)
    credentials = Credentials(token=own_key) if options.keys else None
    service = parse_address(f"127.0.0.1:{options.service_port}")
    service.require_free()
    worker = worker_config(options, None, None, options.drain)
    from radixkv.ray.app import ClusterSettings

    return ClusterSettings(
        workers=options.workers,
        gateways=options.gateways,
        worker_resources={"num_cpus": 1, "num_gpus": options.gpus},
        port=service.with_port().port,
        worker=replace(worker, security=security, credentials=credentials),
        service=ServiceConfig(security=security, **cache_settings(options)),
        gateway=gateway_config(options, options.state, None, credentials),
    )
