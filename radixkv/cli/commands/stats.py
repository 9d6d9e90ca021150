"""`radixkv stats`: stats of a cache service's pools, and of a worker's block store."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import add_command, add_services_flag, say, services_of
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import PermissionDeniedError

if TYPE_CHECKING:
    from radixkv.core.api import NamespaceUsage, WorkerReport

__all__ = ["add", "worker_line"]


def add(commands: Any) -> None:
    """Add the command."""
    stats = add_command(commands, "stats", _run, "print the stats of the pools of services")
    add_services_flag(stats)
    stats.add_argument("--worker", metavar="ADDRESS", help="print the block store of this worker too")
    add_client_flags(stats)


def worker_line(worker: WorkerReport) -> str:
    """The worker of a pool, its load, and how old the report is."""
    where = worker.generation_address or "serves no clients"
    if worker.load is None:
        return f"worker {where}: no load reported"
    load, speed = (
        worker.load,
        f"{worker.load.tokens_per_s:,.0f} tokens/s" if worker.load.tokens_per_s else "not measured",
    )
    if load.loaded_tokens_per_s:
        speed += f", from disk {load.loaded_tokens_per_s:,.0f} tokens/s"
    state = "takes new work" if load.is_accepting else "is stopping"
    return (
        f"worker {where}: {load.num_backlog_tokens:,} prompt tokens to compute, prefill {speed}, "
        f"{load.num_running:,} branches, {state} ({worker.load_age_s:.1f} s ago)"
    )


def _run(options: argparse.Namespace) -> int:
    services = services_of(options)
    for service in services:
        if len(services) > 1:
            say(f"service {service}")
        _say_pools(service, options)
    if options.worker is not None:
        _say_levels(options)
    return 0


def _say_pools(service: str, options: argparse.Namespace) -> None:
    from radixkv.client import connect

    with connect(service, credentials=client_credentials(options)) as reader:
        pools, followed, workers = reader.stats_all(), reader.event_stats_all(), reader.workers_all()
        try:
            usages = reader.usage_all()
        except PermissionDeniedError:  # the credential sees its own namespaces alone
            usages = {}
    for name, stats in pools.items():
        say(f"pool {name}")
        if name in workers:
            say(f"  {worker_line(workers[name])}")
        followers = followed[name]._asdict() if name in followed else {}
        for field, value in (stats._asdict() | followers).items():
            say(f"  {field:<26} {value if isinstance(value, str) else format(value, ','):>14}")
        _say_usages(usages.get(name, ()), stats.block_size)
    if not pools:
        say(f"no pool is attached; start a worker with: radixkv worker --service {service}")


def _say_usages(usages: Sequence[NamespaceUsage], block_size: int) -> None:
    """What each namespace read since it was last empty, and has held, for billing."""
    for use in usages:
        num_computed = use.num_query_tokens - use.num_hit_tokens
        token_hours = use.held_block_s * block_size / 3600
        say(
            f"  namespace {use.namespace}: {num_computed:,} prompt tokens computed, {use.num_hit_tokens:,} found, "
            f"{token_hours:,.1f} token-hours held"
        )


def _say_levels(options: argparse.Namespace) -> None:
    from radixkv.cli.views.top_view import level_line
    from radixkv.generation.client import GenerationClient

    with GenerationClient(options.worker, credentials=client_credentials(options)) as client:
        levels = client.stats().levels
    say(f"worker {options.worker}" + ("" if levels else ": it has no block store"))
    for level in levels:
        say(f"  {level.level:<26} {level_line(level)}")
