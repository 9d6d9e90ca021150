"""What commands share: how one is added, the flags of addresses, and how a line is said."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

__all__ = [
    "DEFAULT_SERVICE_ADDRESS",
    "DEFAULT_WORKER_ADDRESS",
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


def say(text: str) -> None:
    """A line on standard output, at once."""
    print(text, flush=True)
