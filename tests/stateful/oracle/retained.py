"""What each cached block is worth to be kept, from what was said of it alone: its priority, for how long, and since when.

A whole block is known by its namespace and its history, whatever block holds it now; a partly filled one by its block id.
What is said of a range is said of the blocks whose first token lies in it: at a release with keep, or at once by `retain`.
Where a history ends inside a block several may hold it; which of them was meant is then read off the next snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from radixkv.core.api import DEFAULT_PRIORITY, NodeInfo, Retention

from .oracle import Oracle, Tokens
from .shares import owner_of
from .snapshot import Snapshot

__all__ = ["RANGES", "Retained", "check_none_better_went"]

PASSING_S = 86400.0
"""How long time passes at once; what ticks by in between is much less than the rest of a duration."""

SHORT_S = 0.5 * PASSING_S
LONG_S = 1.5 * PASSING_S

RANGES: tuple[tuple[Retention, ...], ...] = (
    (),
    (),
    (Retention(priority=80),),
    (Retention(0, 4, 60), Retention(4, None, 10)),
    (Retention(0, 3, 90, LONG_S),),
    (Retention(priority=60), Retention(2, 7, 20, SHORT_S)),
    (Retention(3, 5, 36), Retention(5, 6, 34), Retention(8, None, 0)),
    (Retention(priority=90, duration_s=SHORT_S),),
    (Retention(5, None, 0), Retention(7, 40)),
    (Retention(0, 6, 60, LONG_S), Retention(4, 10, 60, SHORT_S)),
)
"""What acquires and `retain` say of their histories."""


class Worth(NamedTuple):
    """What is known of one block. `epoch`: how often time had passed at its last use, or when it was given.

    `access_s`, `until_s`: its node's last use and its end as they were shown, below 0 where they were not yet. `is_renewed`: it
    was said since its last use, and then ends after `floor_s`.
    """

    priority: int = DEFAULT_PRIORITY
    duration_s: float = math.inf
    epoch: int = 0
    access_s: float = -1.0
    until_s: float = -1.0
    is_renewed: bool = False
    floor_s: float = 0.0


class _Block(NamedTuple):
    """One block in the tree, with its whole history."""

    namespace: str
    tokens: Tokens
    block_id: int
    node: NodeInfo


Worths = frozenset[Worth]
ORDINARY: Worths = frozenset((Worth(),))


class Retained:
    """Follows what is said, and compares every dump with it."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._size = oracle.block_size
        self._epoch = 0
        self._whole: dict[tuple[str, Tokens], Worths] = {}
        self._by_id: dict[int, tuple[str, Tokens, Worths]] = {}

    def time_passed(self) -> None:
        """By `PASSING_S`."""
        self._epoch += 1

    def said(self, namespace: str, tokens: Tokens, ranges: Sequence[Retention]) -> None:
        """`retain` was called for these tokens, all of which are cached."""
        meant = {}
        for position in range(0, len(tokens), self._size):
            worth = self._wanted(ranges, position, is_renewed=True)
            if worth is None:
                continue
            held = [
                (block_id, end)
                for block_id, (where, end, _) in self._by_id.items()
                if where == namespace and _covers(end, tokens[: position + self._size], self._size)
            ]
            for block_id, end in held:
                before = self._by_id[block_id][2]
                floors = [each.until_s for each in before if each.duration_s == worth.duration_s]
                now = frozenset((worth._replace(floor_s=max(floors, default=0.0)),))
                meant[block_id] = (namespace, end, before | now if len(held) > 1 else now)
        for block_id, (where, end, worths) in meant.items():
            self._by_id[block_id] = (where, end, worths)
            if len(end) % self._size == 0:
                self._whole[where, end] = worths

    def check(self, snapshot: Snapshot, *, is_one_call: bool, keeps_all: bool) -> None:
        """Assert that every node is worth what was said of each of its blocks.

        Unless it `is_one_call`, a block id may have left the tree and be there again with what an ordinary block holds; unless
        the batch `keeps_all`, the same holds for a history.
        """
        is_exact = is_one_call or keeps_all
        whole: dict[tuple[str, Tokens], Worths] = {}
        by_id: dict[int, tuple[str, Tokens, Worths]] = {}
        given_whole, given_ids = self._given(is_exact=is_exact)
        for block in self._blocks(snapshot):
            key = (block.namespace, block.tokens)
            expected = self._expected(block, is_one_call=is_one_call, is_exact=is_exact)
            if key in given_whole:
                expected = given_whole[key] | (frozenset() if is_exact else expected)
            for where, history, worth in given_ids.get(block.block_id, ()):
                if where == block.namespace and self._are_one(history, block.tokens):
                    expected = frozenset((worth,)) | (frozenset() if is_one_call else expected)
            seen = frozenset(filter(None, (self._seen(worth, block.node) for worth in expected)))
            assert seen, f"{block} was to be worth one of {sorted(expected)}, at epoch {self._epoch}"
            if len(block.tokens) % self._size == 0:
                whole[key] = seen
            by_id[block.block_id] = (*key, seen)
        self._whole, self._by_id = whole, by_id

    def _given(
        self, *, is_exact: bool
    ) -> tuple[dict[tuple[str, Tokens], Worths], dict[int, list[tuple[str, Tokens, Worth]]]]:
        """What was said by the releases of this batch, of whole blocks and, by their ids, of partly filled ones."""
        whole: dict[tuple[str, Tokens], Worths] = {}
        by_id: dict[int, list[tuple[str, Tokens, Worth]]] = {}
        for branch in self._oracle.kept:
            for position in range(0, branch.num_computed, self._size):
                worth = self._wanted(branch.retention, position)
                end = position + self._size
                if worth is None:
                    continue
                if end <= branch.num_computed:
                    key = (branch.namespace, branch.tokens[:end])
                    whole[key] = frozenset((worth,)) | (frozenset() if is_exact else whole.get(key, frozenset()))
                else:
                    history = branch.tokens[: branch.num_computed]
                    block_id = branch.table[position // self._size]
                    by_id.setdefault(block_id, []).append((branch.namespace, history, worth))
        self._oracle.kept.clear()
        return whole, by_id

    def _wanted(self, ranges: Iterable[Retention], position: int, *, is_renewed: bool = False) -> Worth | None:
        """What is said of the block that begins there; of ranges that overlap by the later."""
        worth = None
        for start, end, priority, duration_s in ranges:
            if start <= position < (math.inf if end is None else end):
                lasts_s = math.inf if duration_s is None or priority == DEFAULT_PRIORITY else duration_s
                worth = Worth(priority, lasts_s, self._epoch, is_renewed=is_renewed)
        return worth

    def _blocks(self, snapshot: Snapshot) -> Iterable[_Block]:
        for path in snapshot.paths.values():
            first = path.num_above // self._size
            for index, block_id in enumerate(path.node.block_ids, first):
                yield _Block(path.node.namespace, path.tokens[: (index + 1) * self._size], block_id, path.node)

    def _expected(self, block: _Block, *, is_one_call: bool, is_exact: bool) -> Worths:
        """What a block was worth before this batch; what is new is ordinary, a tail that grew is worth what it was.

        In several calls it may have grown and then given its place to another sequence's block of the same tokens.
        """
        known = self._whole.get((block.namespace, block.tokens))
        if known is not None:
            return known if is_exact else known | ORDINARY
        where, tokens, worths = self._by_id.get(block.block_id, ("", (), ORDINARY))
        known = worths if where == block.namespace and self._are_one(tokens, block.tokens) else ORDINARY
        if is_one_call:
            return known
        grown = (
            worths
            for where, tokens, worths in self._by_id.values()
            if where == block.namespace and self._are_one(tokens, block.tokens)
        )
        return known.union(ORDINARY, *grown)

    def _are_one(self, first: Tokens, second: Tokens) -> bool:
        """Whether two histories end in one block, and agree as far as both go."""
        length, size = min(len(first), len(second)), self._size
        return (len(first) - 1) // size == (len(second) - 1) // size and first[:length] == second[:length]

    def _seen(self, worth: Worth, node: NodeInfo) -> Worth | None:
        """The same as the node shows it; None where that is worth something else."""
        if node.last_access_s > worth.access_s >= 0:
            worth = worth._replace(epoch=self._epoch, until_s=-1.0, is_renewed=False)
        worth = worth._replace(access_s=node.last_access_s)
        if not node.lock_ref and worth.duration_s <= (self._epoch - worth.epoch) * PASSING_S:
            worth = Worth(access_s=node.last_access_s)
        if node.priority != worth.priority or (node.retained_until_s == 0) != (worth.duration_s == math.inf):
            return None
        if not node.lock_ref and worth.duration_s < math.inf:
            return self._in_time(worth, node)
        return worth

    def _in_time(self, worth: Worth, node: NodeInfo) -> Worth | None:
        """The same with the end that a node at rest shows; None where that cannot be its end."""
        until_s, used_s = node.retained_until_s, node.last_access_s + worth.duration_s
        if worth.until_s >= 0:
            is_in_time = until_s == worth.until_s
        elif worth.is_renewed:
            is_in_time = until_s > max(used_s, worth.floor_s)
        else:
            is_in_time = until_s == used_s
        return worth._replace(until_s=until_s) if is_in_time else None


def _covers(held: Tokens, tokens: Tokens, size: int) -> bool:
    """Whether a block that ends a history holds the last block of these tokens, which may be filled in part."""
    start = (len(tokens) - 1) // size * size
    return start < len(held) <= start + size and held[: len(tokens)] == tokens


def check_none_better_went(before: Snapshot, after: Snapshot) -> None:
    """Assert of one call that evicted: of no namespace a leaf of a higher priority went while one of a lower stayed."""
    left = {(path.node.namespace, path.tokens): path.node for path in after.paths.values()}
    gone = [
        path.node
        for path in before.paths.values()
        if path.tokens not in after.cached.get(path.node.namespace, ()) and not path.node.is_tail
    ]
    dearest: dict[str, int] = {}
    for node in gone:
        owner = owner_of(node.namespace)
        dearest[owner] = max(node.priority, dearest.get(owner, 0))
    parents = {path.node.parent_id for path in before.paths.values()}
    for node_id, path in before.paths.items():
        stays = left.get((path.node.namespace, path.tokens))
        if stays is not None and node_id not in parents and not path.node.lock_ref and not stays.lock_ref:
            least = dearest.get(owner_of(stays.namespace), 0)
            assert stays.priority >= least, f"{stays} stayed, and of {gone} one went that is worth more"
