"""`radixkv tree`: draws the radix tree of a pool."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import add_command, add_service_flag, say
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.core.api import NodeInfo

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    tree = add_command(commands, "tree", _run, "draw the radix tree of a pool: sizes, ages, locks, pins")
    add_service_flag(tree)
    tree.add_argument("--pool", default="default", help="of the pools of that service (default %(default)s)")
    tree.add_argument("--namespace", metavar="NAME", help="only this one (default: all)")
    tree.add_argument(
        "--worker",
        metavar="ADDRESS",
        help="a worker of that model, which decodes tokens (default: ids are shown)",
    )
    tree.add_argument("--depth", type=int, default=4, metavar="N", help="levels drawn (default %(default)s)")
    tree.add_argument(
        "--children", type=int, default=8, metavar="N", help="drawn per node, the largest first (default %(default)s)"
    )
    add_client_flags(tree)
    tree.add_argument("--json", action="store_true", help="print every node as a line of JSON instead")


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    for flag in ("depth", "children"):
        if getattr(options, flag) < 1:
            raise InvalidArgumentError(f"--{flag}", getattr(options, flag), "at least 1")
    credentials = client_credentials(options)
    with ExitStack() as stack:
        reader = stack.enter_context(connect(options.service, pool_name=options.pool, credentials=credentials))
        stats = reader.stats()
        now_s, nodes = reader.dump_at(options.namespace)
        if options.json:
            for node in nodes:
                say(json.dumps(_as_dict(node, now_s)))
            return 0
        say(f"pool {options.pool}: {stats.num_blocks:,} blocks of {stats.block_size} tokens")
        cached = f"{stats.num_cached_blocks:,} cached, {stats.num_evictable_blocks:,} of them evictable"
        say(f"{cached}, {stats.num_pinned_blocks:,} pinned")
        to_text = None
        if options.worker is not None:
            from radixkv.generation.client import GenerationClient

            to_text = stack.enter_context(GenerationClient(options.worker, credentials=credentials)).detokenize
        _draw(nodes, now_s, to_text, options)
    return 0


def _draw(
    nodes: list[NodeInfo], now_s: float, to_text: Callable[[bytes], str] | None, options: argparse.Namespace
) -> None:
    from rich.console import Console

    from radixkv.cli.views.tree_view import TreeView

    view = TreeView(nodes, now_s, to_text, max_depth=options.depth, max_children=options.children)
    console = Console(highlight=False)
    for tree in view.trees():
        console.print(tree, soft_wrap=True)
    if not nodes:
        say("nothing is cached")


def _as_dict(node: NodeInfo, now_s: float) -> dict[str, Any]:
    from radixkv.core.tokens import unpack_tokens

    return {
        "node_id": node.node_id,
        "parent_id": node.parent_id,
        "namespace": node.namespace,
        "position": node.position,
        "token_ids": unpack_tokens(node.tokens),
        "block_ids": list(node.block_ids),
        "is_tail": node.is_tail,
        "lock_ref": node.lock_ref,
        "num_sequences": node.num_sequences,
        "idle_s": None if node.lock_ref else now_s - node.last_access_s,
        "pinned_s": node.pinned_until_s - now_s if node.pinned_until_s else None,
        "priority": node.priority,
        "retained_s": node.retained_until_s - now_s if node.retained_until_s and not node.lock_ref else None,
    }
