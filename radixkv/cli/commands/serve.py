"""`radixkv serve`: the cache service alone."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import (
    DEFAULT_SERVICE_ADDRESS,
    add_cache_flags,
    add_command,
    add_metrics_flag,
    cache_settings,
    describe_metrics,
    say,
)
from radixkv.cli.kv_event_flags import add_kv_event_flags, describe_kv_events, kv_event_settings
from radixkv.cli.security_flags import add_server_flags, security_of
from radixkv.net.signals import exit_at_interrupt
from radixkv.util.heaps import keep_heaps_small

if TYPE_CHECKING:
    from radixkv.service import ServiceConfig

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    serve = add_command(commands, "serve", _run, "start the cache service alone (needs no torch)")
    serve.add_argument(
        "--listen",
        metavar="ADDRESS",
        action="append",
        help=f"host:port or unix:path; may be given several times (default {DEFAULT_SERVICE_ADDRESS})",
    )
    serve.add_argument(
        "--lease-ttl",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a worker that is silent for this long loses its pool (default %(default)s)",
    )
    serve.add_argument(
        "--max-message-mib", type=float, default=16.0, metavar="MIB", help="largest message read (default %(default)s)"
    )
    add_server_flags(serve)
    serve.add_argument(
        "--drain",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="how long calls may go on after SIGTERM or Ctrl-C; a second signal ends the process at once "
        "(default %(default)s)",
    )
    add_metrics_flag(serve)
    add_cache_flags(serve)
    add_kv_event_flags(serve)


@exit_at_interrupt()
def _run(options: argparse.Namespace) -> int:
    from radixkv.service import run_service

    keep_heaps_small()

    def on_ready(addresses: tuple[str, ...]) -> None:
        where = " and ".join(addresses) + describe_kv_events(options) + describe_metrics(options)
        say(f"radixkv cache service on {where}; Ctrl-C stops it")

    run_service(_service_config(options), on_ready)
    return 0


def _service_config(options: argparse.Namespace) -> ServiceConfig:
    from radixkv.service import ServiceConfig

    return ServiceConfig(
        addresses=tuple(options.listen or [DEFAULT_SERVICE_ADDRESS]),
        lease_ttl_s=options.lease_ttl,
        max_message_bytes=int(options.max_message_mib * 2**20),
        security=security_of(options),
        drain_s=options.drain,
        metrics_address=options.metrics,
        **cache_settings(options),
        **kv_event_settings(options),
    )
