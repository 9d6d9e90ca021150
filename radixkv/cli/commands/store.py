"""`radixkv erase`: a namespace leaves the pools and the block stores. `radixkv store`: a disk cache, while no worker has it."""

from __future__ import annotations

import argparse
from typing import Any

from radixkv.cli.flags import DEFAULT_WORKER_ADDRESS, add_command, add_service_flag, say
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import RadixKVError

__all__ = ["add"]

EXIT_UNREACHABLE = 1

ERASE = """\
Clear a namespace in the pools of a cache service, and erase it in the block stores of workers.

Each worker destroys the namespace's keys first, durably. From then on no copy of its stored blocks can be read with that key
file, in whatever level, snapshot or backup. Then it deletes the blocks. Workers that share a remote level find the erasure
there before they read from it again. Exits with 1 if a service, worker or level could not be reached.

  radixkv erase team-a                                            the service and worker of this machine
  radixkv erase team-a --worker 10.0.0.1:50052 --worker 10.0.0.2:50052
"""


def add(commands: Any) -> None:
    """Add the commands."""
    erase = add_command(commands, "erase", _erase, "erase all that is cached and stored of a namespace")
    erase.description = ERASE
    erase.formatter_class = argparse.RawDescriptionHelpFormatter
    erase.add_argument(
        "namespace", metavar="NAMESPACE", help="a tenant's; those derived for salts and adapters go with it"
    )
    add_service_flag(erase)
    erase.add_argument(
        "--worker",
        metavar="ADDRESS",
        action="append",
        help=f"a worker with a block store; may be given several times (default {DEFAULT_WORKER_ADDRESS})",
    )
    add_client_flags(erase)


def _erase(options: argparse.Namespace) -> int:
    from radixkv.client import connect
    from radixkv.generation.client import GenerationClient

    credentials, is_complete = client_credentials(options), True
    try:
        with connect(options.service, credentials=credentials) as reader:
            pools = list(reader.stats_all())
        for pool in pools:
            with connect(options.service, pool_name=pool, credentials=credentials) as reader:
                say(f"pool {pool}: cleared, {reader.clear(options.namespace):,} blocks freed")
    except RadixKVError as error:
        say(f"service {options.service}: unreachable, {error}")
        is_complete = False
    for address in options.worker or [DEFAULT_WORKER_ADDRESS]:
        try:
            with GenerationClient(address, credentials=credentials) as worker:
                levels = worker.erase(options.namespace)
        except RadixKVError as error:
            say(f"worker {address}: unreachable, {error}")
            is_complete = False
            continue
        for level in levels:
            outcome = "erased" if level.is_erased else "unreachable; without their key its blocks cannot be read"
            say(f"worker {address} {level.level}: {outcome}")
            is_complete &= level.is_erased
    return 0 if is_complete else EXIT_UNREACHABLE
