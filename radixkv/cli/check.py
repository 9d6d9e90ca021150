"""`radixkv check`: whether the books of a service's pools are right."""

from __future__ import annotations

import argparse
from typing import Any

from radixkv.cli.flags import add_command, add_service_flag, say
from radixkv.cli.security_flags import add_client_flags, client_credentials

__all__ = ["add"]

EXIT_VIOLATION = 1


def add(commands: Any) -> None:
    """Add the command."""
    check = add_command(
        commands, "check", _run, "verify every invariant of a service's pools; exits with 1 where one is broken"
    )
    add_service_flag(check)
    add_client_flags(check)


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    with connect(options.service, credentials=client_credentials(options)) as reader:
        found = reader.check_all()
    for name, (violation, num_audits) in found.items():
        what = f"BROKEN: {violation}" if violation else "sound"
        say(f"pool {name}: {what} (the service has gone over it {num_audits:,} times since it was attached)")
    if not found:
        say("no pool is attached; start a worker with: radixkv worker --service " + options.service)
    return EXIT_VIOLATION if any(check.violation for check in found.values()) else 0
