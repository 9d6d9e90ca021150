"""A sequence: one growing branch, the path it shares, the blocks it writes.

Its block table, as half-open ranges of logical blocks:

    [0, private_from)    owned by the tree, on the locked path to `node` (except `kept_blocks` and `left_tails`)
    [private_from, ...)  private: no other sequence reads them; insert publishes them from the front
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import partial

from radixkv.core.api import Retention
from radixkv.core.nodes.node import Node
from radixkv.core.tree.roots import RootNode

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """State of one open sequence. Lengths that end in `_bytes` count packed bytes, 4 to a token.

    Attributes:
        tokens: its whole history, packed; the caller's own bytes until the history grows.
        table: logical block index -> block id.
        root, node: the tree it belongs to, and the deepest node that it stands on (one lock ref).
        published_bytes: its history up to here is covered by the path to `node`.
        shares_last_block: its last, partly filled block is another's: at its first write it takes the append right or gets a
            copy. Until then `node` is the node with that block as its last.
        private_from: index of the first private block of the table's end.
        kept_blocks: private blocks below that, whose tokens another sequence had published first (its table is never remapped).
        left_tails: tails whose append right it holds though it stands elsewhere; one lock ref each, until release.
        num_stored, num_computed, room: see `api`; `room` is the end of its writable positions.
        retention: set on its history once it is released.
        opened_s: when it was opened, by the cache's clock.
        promised_table_length, num_promised: blocks of table that `reserve` promised, and how many of them are not taken.
    """

    seq_id: int
    root: RootNode
    node: Node
    tokens: bytes | bytearray
    table: array[int]
    published_bytes: int = 0
    shares_last_block: bool = False
    private_from: int = 0
    kept_blocks: array[int] = field(default_factory=partial(array, "i"))
    left_tails: list[Node] = field(default_factory=list)
    num_stored: int = 0
    num_computed: int = 0
    room: int = 0
    promised_table_length: int = 0
    num_promised: int = 0
    retention: tuple[Retention, ...] = ()
    opened_s: float = 0.0

    def append_tokens(self, packed: bytes) -> None:
        """Lengthen the history. O(new), amortised."""
        if isinstance(self.tokens, bytes):
            self.tokens = bytearray(self.tokens)
        self.tokens += packed

    def table_is_the_path(self) -> bool:
        """Whether its table lists exactly the tree's blocks on its path (so that children may copy it)."""
        return not self.kept_blocks and not self.left_tails

    def private_blocks(self) -> array[int]:
        """Every block that this sequence owns alone."""
        return self.table[self.private_from :] + self.kept_blocks
