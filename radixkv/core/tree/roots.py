"""The root of a namespace's tree, and the pins that stand below it."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass

from radixkv.core.api import PinInfo
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.accounts import NamespaceAccount

__all__ = ["Pin", "RootNode"]


class RootNode(Node):
    """The empty prefix of one namespace.

    `is_hidden`: nothing new matches this tree. The namespace was cleared while sequences stood here, or the sequence that
    opened it does not share; its sequences and their forks share among themselves, and the nodes they leave are freed at once.
    `account`: pool usage of the namespace's owner. `pins`: the namespace's by their tokens, the oldest first. `cut_pins`:
    the lengths in bytes of those that end inside a block, with their number, by where that block begins.
    """

    __slots__ = ("account", "cut_pins", "is_hidden", "namespace", "pins")

    def __init__(self, namespace: str, account: NamespaceAccount, *, is_hidden: bool = False) -> None:
        super().__init__(None, b"", b"", array("i"))
        self.namespace = namespace
        self.account = account
        self.is_hidden = is_hidden
        self.pins: dict[bytes, Pin] = {}
        self.cut_pins: dict[int, Counter[int]] = {}


@dataclass(slots=True, eq=False, repr=False)
class Pin:
    """One protected prefix: the last of its packed `tokens` lies in the last block of `node`. Times by the cache's clock.

    `queued_s`: time of its entry in the heap; earlier than `expires_s` where a use has renewed it since.
    """

    root: RootNode
    node: Node
    tokens: bytes
    num_blocks: int
    ttl_s: float = 0.0
    expires_s: float = 0.0
    queued_s: float = math.inf
    cost: float = 0.0

    def info(self, now_s: float) -> PinInfo:
        """The pin as `pins` lists it."""
        remaining_s = max(0.0, self.expires_s - now_s)
        num_tokens = len(self.tokens) // TOKEN_BYTES
        return PinInfo(self.root.namespace, self.tokens, num_tokens, self.num_blocks, self.ttl_s, remaining_s)
