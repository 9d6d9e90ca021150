"""What commands share: how one is added, the flags of addresses, and how a line is said."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from radixkv.core.eviction import DEFAULT_POLICY, POLICIES

__all__ = [
    "DEFAULT_SERVICE_ADDRESS",
    "DEFAULT_WORKER_ADDRESS",
    "add_cache_flags",
    "add_command",
    "add_service_flag",
    "say",
]

DEFAULT_SERVICE_ADDRESS = "127.0.0.1:50051"
DEFAULT_WORKER_ADDRESS = "127.0.0.1:50052"


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_text: str
) -> argparse.ArgumentParser:
    """A parser for `radixkv NAME`, carried out by `run`. `help_text`: one line that begins in lower case, with no stop."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def add_service_flag(command: argparse.ArgumentParser) -> None:
    """`--service ADDRESS`."""
    command.add_argument(
        "--service", metavar="ADDRESS", default=DEFAULT_SERVICE_ADDRESS, help="the cache service (default %(default)s)"
    )


def add_cache_flags(command: argparse.ArgumentParser) -> None:
    """What a command that keeps trees can be told of them."""
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
        help="what the pins of one namespace of one pool may cost, blocks x seconds (default: half of the pool for an hour)",
    )


def say(text: str) -> None:
    """A line on standard output, at once."""
    print(text, flush=True)
