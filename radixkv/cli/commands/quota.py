"""`radixkv quota`: each namespace's use of a pool, and its quota."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import add_command, add_services_flag, read_blocks, say, services_of
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.client import RemoteReader
    from radixkv.core.api import CacheStats, NamespaceUsage

__all__ = ["add"]

NONE = "none"

DESCRIPTION = """\
Show the namespaces' use of pools, and set their quotas in each.

A namespace with a quota of blocks has a share of the pool to itself. Its sequences and pins never exceed it, and no other
namespace can take it. Its cached blocks may exceed it, in blocks that are idle elsewhere: these are borrowed, and evicted when
their owner needs them. The namespaces without a quota share the rest of the pool.

A quota set here outlives the worker, and a restart of the service with a running worker. It is lost when both end: a permanent
quota belongs in the service's own --quota."""

EPILOG = """\
examples:
  radixkv quota                                    every namespace of every pool
  radixkv quota tenant --blocks 25% --sequences 8  a quarter of the pool, and 8 sequences at a time
  radixkv quota tenant --blocks none               no bound on blocks, still 8 sequences
  radixkv quota tenant --remove                    no bound at all
  radixkv quota tenant --blocks 25% --service A --service B    in all pools of both services
"""


def add(commands: Any) -> None:
    """Add the command."""
    quota = add_command(commands, "quota", _run, "show the namespaces' use of pools, and set their quotas")
    quota.description, quota.epilog = DESCRIPTION, EPILOG
    quota.formatter_class = argparse.RawDescriptionHelpFormatter
    quota.add_argument("namespace", nargs="?", metavar="NAMESPACE", help="only this one (default: all)")
    quota.add_argument(
        "--blocks",
        metavar="N|P%",
        help=f"its share, in blocks or as a part of the pool as it is now; {NONE}: none (default: unchanged)",
    )
    quota.add_argument(
        "--sequences", metavar="N", help=f"bound on its open sequences; {NONE}: no bound (default: unchanged)"
    )
    quota.add_argument("--remove", action="store_true", help="drop both bounds")
    add_services_flag(quota)
    quota.add_argument("--pool", metavar="NAME", help="only this pool (default: all of the services)")
    add_client_flags(quota)
    quota.add_argument("--json", action="store_true", help="print every namespace as a line of JSON instead")


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    is_set = options.blocks is not None or options.sequences is not None
    if options.namespace is None and (is_set or options.remove):
        raise InvalidArgumentError("NAMESPACE", None, "given along with --blocks, --sequences and --remove")
    if is_set and options.remove:
        raise InvalidArgumentError("--remove", True, "given without --blocks and --sequences")
    services = services_of(options)
    for service in services:
        with connect(service, credentials=client_credentials(options)) as reader:
            pools = [options.pool] if options.pool else sorted(reader.stats_all())
            for pool in pools:
                _run_pool(reader.of_pool(pool), pool if len(services) == 1 else f"{pool} of {service}", options)
            if not pools:
                say(f"no pool is attached; start a worker with: radixkv worker --service {service}")
    return 0


def _run_pool(reader: RemoteReader, name: str, options: argparse.Namespace) -> None:
    stats = reader.stats()
    if options.blocks is not None or options.sequences is not None or options.remove:
        _set(reader, options, stats.num_blocks)
    usages = reader.usage(options.namespace)
    if options.json:
        for use in usages:
            say(json.dumps({"pool": name, **use._asdict(), "num_borrowed": _num_borrowed(use)}))
    else:
        common = stats.num_blocks - sum(use.block_quota or 0 for use in reader.usage())
        _show(name, stats, common, usages)


def _set(reader: RemoteReader, options: argparse.Namespace, num_blocks: int) -> None:
    """Set the quotas that are given; others stay unchanged."""
    [use] = reader.usage(options.namespace)
    blocks, sequences = use.block_quota, use.sequence_quota
    if options.blocks is not None or options.remove:
        blocks = _blocks_of(options.blocks or NONE, num_blocks)
    if options.sequences is not None or options.remove:
        sequences = _sequences_of(options.sequences or NONE)
    reader.set_quota(options.namespace, blocks, sequences)


def _blocks_of(text: str, num_blocks: int) -> int | None:
    if text == NONE:
        return None
    try:
        blocks, percent = read_blocks(text)
    except ValueError:
        bound = f"a number of blocks, a part of the pool such as 25%, or {NONE}"
        raise InvalidArgumentError("--blocks", text, bound) from None
    if percent is None:
        return blocks
    if not 0 <= percent <= 100:
        raise InvalidArgumentError("--blocks", text, "from 0% to 100%")
    return int(num_blocks * percent / 100)


def _sequences_of(text: str) -> int | None:
    if text == NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError("--sequences", text, f"a number or {NONE}") from None


def _show(pool: str, stats: CacheStats, common: int, usages: list[NamespaceUsage]) -> None:
    say(f"pool {pool}: {stats.num_blocks:,} blocks of {stats.block_size} tokens, {stats.num_free_blocks:,} free")
    say(f"{common:,} blocks are for the namespaces without a quota together")
    if not usages:
        say("no namespace holds anything or has a quota")
        return
    heads = ("namespace", "blocks", "in use", "quota", "borrowed", "sequences")
    rows = [heads, *map(_row, usages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        say("  ".join((name.ljust(widths[0]), *cells)))


def _row(use: NamespaceUsage) -> tuple[str, ...]:
    num_borrowed = _num_borrowed(use)
    sequences = f"{use.num_sequences:,}"
    return (
        use.namespace,
        f"{use.num_blocks:,}",
        f"{use.num_blocks_in_use:,}",
        "-" if use.block_quota is None else f"{use.block_quota:,}",
        "-" if num_borrowed is None else f"{num_borrowed:,}",
        sequences if use.sequence_quota is None else f"{sequences} of {use.sequence_quota:,}",
    )


def _num_borrowed(use: NamespaceUsage) -> int | None:
    """Blocks that it owns beyond its quota; None without a quota."""
    return None if use.block_quota is None else max(0, use.num_blocks - use.block_quota)
