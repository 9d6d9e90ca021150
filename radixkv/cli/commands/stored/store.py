"""`radixkv erase`: a namespace leaves the pools and the block stores. `radixkv store`: a disk cache, while no worker has it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from radixkv.cli.flags import DEFAULT_WORKER_ADDRESS, add_command, add_service_flag, say
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.planner.sizes import format_bytes, parse_bytes

__all__ = ["add"]

EXIT_INCOMPLETE = 1
"""A service, worker or level could not be reached, or blocks are damaged."""

STORE = """\
Look after a disk cache (--disk-cache DIR:SIZE) that no worker has open.

  radixkv store list DIR                       models, their blocks, and the ids of namespaces
  radixkv store check DIR --namespace team-a   read every block, open those of the namespace; exits with 1 if one is damaged
  radixkv store trim DIR 10GiB                 delete what was used longest ago, down to a size
  radixkv store erase DIR --namespace team-a   destroy the namespace's keys in the key file, then delete its blocks

The remote levels that workers with this key file have had learn of an erasure by their next one.
"""

ERASE = """\
Erase a namespace in the block stores of workers, and clear it in the pools of a cache service.

Each worker destroys the namespace's keys first, durably. From then on no copy of its stored blocks can be read with that key
file, in whatever level, snapshot or backup. Then it deletes the blocks. Workers that share a remote level find the erasure
there within seconds, and before their first read. Exits with 1 if a service, worker or level could not be reached.

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
    store = add_command(commands, "store", _store, "list, check, trim or erase a disk cache that no worker has open")
    store.description = STORE
    store.formatter_class = argparse.RawDescriptionHelpFormatter
    store.add_argument("action", choices=["list", "check", "trim", "erase"], help="see above")
    store.add_argument("folder", metavar="DIR", type=Path, help="the folder of --disk-cache")
    store.add_argument("size", metavar="SIZE", nargs="?", help="with trim: the size to keep, e.g. 10GiB")
    store.add_argument(
        "--namespace",
        metavar="NAME",
        action="append",
        default=[],
        help="with check: open its blocks, too; with erase: the one to erase (default: those erased in the key file)",
    )
    store.add_argument("--store-key", metavar="FILE", help="the key file (default: in the state folder)")


def _store(options: argparse.Namespace) -> int:
    from radixkv.stores import offline
    from radixkv.stores.secrets.keys import StoreKeys
    from radixkv.util.folders import state_folder

    if (options.size is not None) != (options.action == "trim"):
        raise InvalidArgumentError("SIZE", options.size, "given with trim, and with nothing else")
    if options.namespace and options.action in {"list", "trim"}:
        raise InvalidArgumentError("--namespace", options.namespace, "given with check or erase")
    if options.action in {"list", "trim"}:
        size_bytes = None if options.size is None else parse_bytes(options.size, "SIZE")
        models = offline.list_models(options.folder) if size_bytes is None else offline.trim(options.folder, size_bytes)
        for model in models:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.used_s))
            held = f"{model.num_blocks:,} blocks" if model.is_readable else "index unreadable"
            say(f"model {model.folder}: {held}, {format_bytes(model.file_bytes)}, used {when}")
            for namespace, count in sorted((model.namespaces or {}).items(), key=lambda item: -item[1]):
                say(f"  namespace {namespace}  {count:>10,} blocks")
        if not models:
            say(f"no blocks in {options.folder}")
        return 0
    key_file = Path(options.store_key or state_folder() / "store.key").expanduser()
    has_keys = key_file.exists()
    if not has_keys and (options.namespace or options.action == "erase"):  # a new file would open and erase nothing
        raise InvalidArgumentError(
            "--store-key", str(key_file), "the key file of the worker that has stored the blocks"
        )
    if options.action == "erase":
        for namespace in options.namespace or [None]:
            for model_folder, count in offline.erase(options.folder, StoreKeys(key_file), namespace).items():
                say(f"model {model_folder}: {count:,} blocks of {namespace or 'erased namespaces'} deleted")
        return 0
    checked = offline.check(options.folder, StoreKeys(key_file) if has_keys else None, options.namespace)
    for one in checked:
        index = "" if one.is_intact else ", index damaged"
        say(
            f"model {one.folder}: {one.num_blocks:,} blocks, {one.num_opened:,} opened, {one.num_damaged:,} damaged, "
            f"{one.num_erased:,} erased, {one.num_unopened:,} of other namespaces{index}"
        )
    return EXIT_INCOMPLETE if any(one.num_damaged or not one.is_intact for one in checked) else 0


def _erase(options: argparse.Namespace) -> int:
    from radixkv.client import connect
    from radixkv.generation.client import GenerationClient

    credentials, is_complete = client_credentials(options), True
    for address in options.worker or [DEFAULT_WORKER_ADDRESS]:
        try:
            with GenerationClient(address, credentials=credentials) as worker:
                levels = worker.erase(options.namespace)
        except RadixKVError as error:
            say(f"worker {address}: {error}")
            is_complete = False
            continue
        if not levels:
            say(f"worker {address}: it has no block store")
        for level in levels:
            outcome = "erased" if level.is_erased else "unreachable; without their key its blocks cannot be read"
            say(f"worker {address} {level.level}: {outcome}")
            is_complete &= level.is_erased
    try:
        with connect(options.service, credentials=credentials) as reader:
            pools = list(reader.stats_all())
        for pool in pools:
            with connect(options.service, pool_name=pool, credentials=credentials) as reader:
                say(f"pool {pool}: cleared, {reader.clear(options.namespace):,} blocks freed")
    except RadixKVError as error:
        say(f"service {options.service}: {error}")
        is_complete = False
    return 0 if is_complete else EXIT_INCOMPLETE
