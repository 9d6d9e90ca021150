"""Output of `radixkv tree`: radix nodes as branches of a drawing, the largest first, the rest summed up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixkv.cli.amounts import count, duration
from radixkv.core.api import DEFAULT_PRIORITY
from radixkv.core.tokens import TOKEN_BYTES, unpack_tokens

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from radixkv.core.api import NodeInfo

__all__ = ["NUM_SHOWN_TOKENS", "TreeView"]

NUM_SHOWN_TOKENS = 24
"""Shown of an edge, as text or as ids."""

_MAX_CHARACTERS = 60
_NUM_SHOWN_IDS = 6


@dataclass(slots=True, eq=False)
class _Branch:
    """A node with its subtree; without `info` a namespace. `num_blocks` and `num_nodes` count the subtree."""

    info: NodeInfo | None = None
    children: list[_Branch] = field(default_factory=list)
    num_blocks: int = 0
    num_nodes: int = 0


class TreeView:
    """Nodes of one listing.

    Args:
        nodes: parents before children, as `dump` lists them.
        now_s: time of the listing, on the clock of the nodes' times.
        to_text: the text of an edge's first packed tokens; None: ids are shown.
        max_depth, max_children: deeper nodes, and children after the largest, are summed up in a line.
    """

    def __init__(
        self,
        nodes: Sequence[NodeInfo],
        now_s: float,
        to_text: Callable[[bytes], str] | None,
        *,
        max_depth: int,
        max_children: int,
    ) -> None:
        self._now_s = now_s
        self._to_text = to_text
        self._max_depth = max_depth
        self._max_children = max_children
        self._namespaces = _gather(nodes)

    def trees(self) -> Iterator[Tree]:
        """One per namespace, by name."""
        from rich.text import Text
        from rich.tree import Tree

        for name, branch in sorted(self._namespaces.items()):
            tree = Tree(Text(f"{name}  {_sums(branch)}", style="bold"))
            self._grow(tree, branch, 1)
            yield tree

    def _grow(self, tree: Tree, branch: _Branch, depth: int) -> None:
        from rich.text import Text

        ordered = sorted(branch.children, key=lambda child: -child.num_blocks)
        shown = ordered[: self._max_children] if depth <= self._max_depth else []
        for child in shown:
            self._grow(tree.add(self._line(child)), child, depth + 1)
        rest = ordered[len(shown) :]
        if rest:
            num_blocks, num_nodes = sum(child.num_blocks for child in rest), sum(child.num_nodes for child in rest)
            what = "below" if depth > self._max_depth else "more"
            tree.add(Text(f"… {num_nodes:,} {what}, {count(num_blocks, 'block')}", style="dim"))

    def _line(self, branch: _Branch) -> Text:
        from rich.text import Text

        info = branch.info
        assert info is not None, "a namespace has no edge"
        num_tokens = len(info.tokens) // TOKEN_BYTES
        line = Text(f"{info.position:,} + {count(num_tokens, 'token')}, {count(len(info.block_ids), 'block')}")
        line.append("  tail" if info.is_tail else "", style="dim")
        if info.pinned_until_s:
            line.append(f"  pinned {duration(info.pinned_until_s - self._now_s)}", style="cyan")
        if info.priority != DEFAULT_PRIORITY:
            line.append(f"  priority {info.priority}", style="magenta")
            if info.retained_until_s and not info.lock_ref:
                line.append(f" for {duration(info.retained_until_s - self._now_s)}", style="magenta")
        if info.lock_ref:
            line.append(f"  in use, {info.lock_ref}", style="yellow")
        else:
            line.append(f"  {duration(self._now_s - info.last_access_s)} ago", style="green")
        line.append(f"  {self._edge(info)}", style="dim")
        return line

    def _edge(self, info: NodeInfo) -> str:
        tokens = info.tokens[: NUM_SHOWN_TOKENS * TOKEN_BYTES]
        is_cut = len(tokens) < len(info.tokens)
        if self._to_text is None:
            ids = unpack_tokens(tokens)
            is_cut |= len(ids) > _NUM_SHOWN_IDS
            return "[" + " ".join(map(str, ids[:_NUM_SHOWN_IDS])) + (" …]" if is_cut else "]")
        text = " ".join(self._to_text(tokens).split())
        is_cut |= len(text) > _MAX_CHARACTERS
        return repr(text[:_MAX_CHARACTERS] + ("…" if is_cut else ""))


def _gather(nodes: Sequence[NodeInfo]) -> dict[str, _Branch]:
    namespaces: dict[str, _Branch] = defaultdict(_Branch)
    branches: dict[int, _Branch] = {}
    for info in nodes:
        branch = branches[info.node_id] = _Branch(info, num_blocks=len(info.block_ids), num_nodes=1)
        above = branches[info.parent_id] if info.parent_id else namespaces[info.namespace]
        above.children.append(branch)
    for info in reversed(nodes):
        branch = branches[info.node_id]
        above = branches[info.parent_id] if info.parent_id else namespaces[info.namespace]
        above.num_blocks += branch.num_blocks
        above.num_nodes += branch.num_nodes
    return namespaces


def _sums(branch: _Branch) -> str:
    return f"{count(branch.num_nodes, 'node')}, {count(branch.num_blocks, 'block')}"
