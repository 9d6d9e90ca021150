"""Shared by commands: adding one, the flags of addresses, and printing a line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.eviction import DEFAULT_POLICY, POLICIES
from radixkv.service.quotas import Quota

__all__ = [
    "DEFAULT_GATEWAY",
    "DEFAULT_SERVICE_ADDRESS",
    "DEFAULT_WORKER_ADDRESS",
    "add_cache_flags",
    "add_command",
    "add_metrics_flag",
    "add_service_flag",
    "add_services_flag",
    "cache_settings",
    "describe_metrics",
    "read_blocks",
    "say",
    "say_stage",
]

DEFAULT_SERVICE_ADDRESS = "127.0.0.1:50051"
DEFAULT_WORKER_ADDRESS = "127.0.0.1:50052"
DEFAULT_GATEWAY = "http://127.0.0.1:8000"
_STARTED_S = time.monotonic()


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_text: str
) -> argparse.ArgumentParser:
    """A parser for `radixkv NAME`, run by `run`. `help_text`: one line in lower case without a full stop."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        allow_abbrev=False,  # --host is not --host-cache
    )
    command.set_defaults(run=run)
    return command


def add_service_flag(command: argparse.ArgumentParser) -> None:
    """`--service ADDRESS`."""
    command.add_argument(
        "--service", metavar="ADDRESS", default=DEFAULT_SERVICE_ADDRESS, help="the cache service (default %(default)s)"
    )


def add_services_flag(command: argparse.ArgumentParser) -> None:
    """`--service ADDRESS`, any number of them; `services_of` reads it."""
    command.add_argument(
        "--service",
        action="append",
        metavar="ADDRESS",
        help=f"a cache service; may be given several times (default {DEFAULT_SERVICE_ADDRESS})",
    )


def services_of(options: argparse.Namespace) -> list[str]:
    """The addresses of the cache services."""
    return options.service or [DEFAULT_SERVICE_ADDRESS]


def add_metrics_flag(command: argparse.ArgumentParser) -> None:
    """`--metrics ADDRESS`."""
    command.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="serve Prometheus at http://host:port/metrics, without a key: every client that reaches it reads the load, and "
        "of a cache service the names of namespaces (default: nowhere)",
    )


def describe_metrics(options: argparse.Namespace) -> str:
    """A line with the address, to print below the others; empty without one."""
    return f"\n  metrics        http://{options.metrics}/metrics" if options.metrics else ""


def add_cache_flags(command: argparse.ArgumentParser) -> None:
    """Flags of commands that keep trees."""
    command.add_argument(
        "--eviction",
        choices=list(POLICIES),
        default=DEFAULT_POLICY,
        help="which cached branches go first when room is needed; radixkv replay compares them (default %(default)s)",
    )
    command.add_argument(
        "--pin-budget",
        type=float,
        metavar="BLOCK_SECONDS",
        help="bound on the pins of one namespace of one pool, blocks x seconds (default: half of the pool for an hour)",
    )

    command.add_argument(
        "--quota",
        type=_read_quota,
        metavar="NAMESPACE=BLOCKS[:SEQUENCES]",
        action="append",
        help="give a namespace a share of every pool, as a number of blocks or a part of the pool, and bound its open "
        "sequences: tenant=2000, tenant=25%%:8, tenant=:8; may be given several times, and changed while it runs by "
        "radixkv quota; a pool that is too small for all of them cuts each in proportion",
    )


def cache_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The flags' values, as settings of a `ServiceConfig`."""
    return {
        "eviction": options.eviction,
        "pin_budget": options.pin_budget,
        "quotas": tuple(options.quota or ()),
    }


def read_blocks(text: str) -> tuple[int | None, float | None]:
    """A quota as ``"2000"`` or ``"25%"``: blocks, or per cent of a pool; the other is None.

    Raises:
        ValueError: the text is neither.
    """
    if text.endswith("%"):
        return None, float(text[:-1])
    return int(text), None


def _read_quota(text: str) -> Quota:
    namespace, equals, bounds = text.rpartition("=")
    blocks, _, sequences = bounds.partition(":")
    form = f"{text!r} is not NAMESPACE=BLOCKS[:SEQUENCES], such as tenant=2000, tenant=25%:8 or tenant=:8"
    if not equals or not (blocks or sequences):
        raise argparse.ArgumentTypeError(form)
    try:
        num_blocks, percent = read_blocks(blocks) if blocks else (None, None)
        max_sequences = int(sequences) if sequences else None
    except ValueError:
        raise argparse.ArgumentTypeError(form) from None
    try:
        return Quota(namespace, num_blocks, percent, max_sequences)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def say(text: str) -> None:
    """Print a line on standard output, flushed."""
    print(text, flush=True)


def say_stage(stage: str) -> None:
    """Print the next stage of a start and the seconds so far to standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"{time.monotonic() - _STARTED_S:5.1f} s  {stage}", file=sys.stderr, flush=True)
