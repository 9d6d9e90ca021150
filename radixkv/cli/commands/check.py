"""`radixkv check`: verifies the invariants of a service's pools, and a sample of cached blocks against the model."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from radixkv.cli.flags import add_command, add_services_flag, say, services_of
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, num_tokens

if TYPE_CHECKING:
    from radixkv.client import RemoteReader
    from radixkv.core.api import NodeInfo

__all__ = ["add"]

EXIT_VIOLATION = 1

DESCRIPTION = """\
Verify every invariant of a service's pools; exits with 1 if one is broken.

With --deep also verify a sample of the cached blocks: a worker recomputes each from its tokens and the cached blocks before it,
between two rounds of its own work, and compares. Where callers need a key it must be an admin's. A verified branch counts as
used.

  radixkv check                                       the invariants alone, of all pools
  radixkv check --deep --worker 127.0.0.1:50052       and 64 blocks of that worker's pool
"""


def add(commands: Any) -> None:
    """Add the command."""
    check = add_command(
        commands, "check", _run, "verify every invariant of the pools of services; exits with 1 if one is broken"
    )
    check.description = DESCRIPTION
    check.formatter_class = argparse.RawDescriptionHelpFormatter
    add_services_flag(check)
    deep = check.add_argument_group("cached blocks")
    deep.add_argument("--deep", action="store_true", help="have cached blocks recomputed, and compare")
    deep.add_argument("--worker", metavar="ADDRESS", help="the worker of that pool; needed with --deep")
    deep.add_argument("--pool", default="default", help="that worker's pool (default %(default)s)")
    deep.add_argument("--namespace", metavar="NAME", help="only blocks of this namespace (default: all)")
    deep.add_argument("--blocks", type=int, default=64, metavar="N", help="size of the sample (default %(default)s)")
    deep.add_argument("--seed", type=int, metavar="N", help="draw the same sample again (default: another each time)")
    add_client_flags(check)


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    if options.deep and options.worker is None:
        raise InvalidArgumentError("--worker", None, "given with --deep: the address of a worker")
    if options.blocks < 1:
        raise InvalidArgumentError("--blocks", options.blocks, "at least 1")
    services, credentials = services_of(options), client_credentials(options)
    if options.deep and len(services) > 1:
        raise InvalidArgumentError("--service", services, "one with --deep, that of the worker")
    is_broken = False
    for service in services:
        where = f" of {service}" if len(services) > 1 else ""
        with connect(service, pool_name=options.pool, credentials=credentials) as reader:
            found = reader.check_all()
            for name, (violation, num_audits) in found.items():
                what = f"BROKEN: {violation}" if violation else "sound"
                say(
                    f"pool {name}{where}: {what} (the service has gone over it {num_audits:,} times since it was attached)"
                )
            if not found:
                say(f"no pool is attached; start a worker with: radixkv worker --service {service}")
            is_broken |= any(check.violation for check in found.values())
            if options.deep and found:
                is_broken |= _check_blocks(reader, options)
    return EXIT_VIOLATION if is_broken else 0


class _Block(NamedTuple):
    """A full cached block: its namespace, and the tokens of its branch up to and with it."""

    namespace: str
    tokens: bytes


def _check_blocks(reader: RemoteReader, options: argparse.Namespace) -> bool:
    """Verify a sample. Returns whether a block differs."""
    from radixkv.generation.client import GenerationClient
    from radixkv.generation.verification import BlockVerdict

    block_size = reader.stats().block_size
    drawn = _draw(reader.dump(options.namespace), block_size, options.blocks, random.Random(options.seed))
    if not drawn:
        say(f"pool {options.pool}: no full block is cached")
        return False
    counts = dict.fromkeys(BlockVerdict, 0)
    most, started_s = 0.0, time.monotonic()
    with ExitStack() as stack:
        client = stack.enter_context(GenerationClient(options.worker, credentials=client_credentials(options)))
        for number, block in enumerate(drawn, 1):
            found = client.verify_block(block.tokens, block.namespace)
            counts[found.verdict] += 1
            if found.difference is not None and found.verdict is BlockVerdict.AGREES:
                most = max(most, found.difference.relative)
            if found.verdict is BlockVerdict.DIFFERS and found.difference is not None:
                end = num_tokens(block.tokens)
                say(
                    f"pool {options.pool}: BROKEN: block {found.block_id} of namespace {block.namespace!r}, tokens "
                    f"{end - block_size:,} to {end:,} of a branch: off by {100 * found.difference.relative:.3g}% in layer "
                    f"{found.difference.layer}, a single value by {found.difference.largest:.3g} times what is usual there"
                )
            if sys.stderr.isatty():
                print(
                    f"\r{number}/{len(drawn)} blocks",
                    end="\n" if number == len(drawn) else "",
                    file=sys.stderr,
                    flush=True,
                )
    told = [f"{counts[BlockVerdict.AGREES]} agree (within {100 * most:.2g}%)", f"{counts[BlockVerdict.DIFFERS]} differ"]
    told += [f"{counts[BlockVerdict.GONE]} not cached any more"] * bool(counts[BlockVerdict.GONE])
    told += [f"{counts[BlockVerdict.NO_ROOM]} without room to compute in"] * bool(counts[BlockVerdict.NO_ROOM])
    say(f"pool {options.pool}: {len(drawn)} blocks in {time.monotonic() - started_s:.1f} s: {', '.join(told)}")
    if counts[BlockVerdict.GONE] == len(drawn):
        say(f"none of them is in the pool of {options.worker}: is that the worker of pool {options.pool}?")
    return counts[BlockVerdict.DIFFERS] > 0


def _draw(nodes: Sequence[NodeInfo], block_size: int, num_blocks: int, source: random.Random) -> list[_Block]:
    """Blocks drawn evenly from all full ones."""
    places = [(node, place) for node in nodes for place in range(num_tokens(node.tokens) // block_size)]
    by_id = {node.node_id: node for node in nodes}
    drawn = source.sample(places, min(num_blocks, len(places)))
    blocks = (_find(node, (place + 1) * block_size, by_id) for node, place in drawn)
    return [block for block in blocks if block is not None]


def _find(node: NodeInfo, end: int, by_id: dict[int, NodeInfo]) -> _Block | None:
    """The block that ends `end` tokens into a node; None if a node above it was evicted during the listing."""
    edges = [node.tokens[: end * TOKEN_BYTES]]
    below = node
    while below.parent_id:
        above = by_id.get(below.parent_id)
        if above is None:
            return None
        edges.append(above.tokens[: (below.position - above.position) * TOKEN_BYTES])
        below = above
    return _Block(node.namespace, b"".join(reversed(edges)))
