"""`radixkv stats`: what the pools of a cache service hold and have saved."""

from __future__ import annotations

import argparse
from typing import Any

from radixkv.cli.flags import add_command, add_service_flag, say

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    stats = add_command(commands, "stats", _run, "print what the pools of a service hold and have saved")
    add_service_flag(stats)


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    with connect(options.service) as reader:
        pools = reader.stats_all()
    for name, stats in pools.items():
        say(f"pool {name}")
        for field, value in stats._asdict().items():
            say(f"  {field:<24} {value:>14,}")
    if not pools:
        say("no pool is attached; start a worker with: radixkv worker --service " + options.service)
    return 0
