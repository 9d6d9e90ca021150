"""What quotas allow, from token tuples and what the cache shows alone; a part of the oracle.

A namespace with a quota of blocks has a share of the pool to itself, all others have the common share together. What is in use
in a share never exceeds it; what is cached may, in blocks that lie idle in another, until their owner wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from radixkv.core.api import AcquireOp, ExtendOp, ForkOp, NamespaceUsage, NodeInfo, Pending, StepOp, StepResult
from radixkv.core.errors import OutOfBlocksError, QuotaError, RadixKVError
from radixkv.core.tokens import unpack_tokens

if TYPE_CHECKING:
    from .oracle import Branch, Oracle
    from .snapshot import Snapshot

__all__ = ["REFUSALS", "EvictionOrder", "Shares", "owner_of"]

REFUSALS = (OutOfBlocksError, QuotaError)
COMMON = ""
"""The share of those without a quota; no namespace is called so."""


def owner_of(namespace: str) -> str:
    """In whose books a namespace is."""
    return namespace.split("#", maxsplit=1)[0]


class _Room(NamedTuple):
    """Blocks to be had: of its own quota (None: it has none), and of its share and the pool at once."""

    of_quota: int | None
    in_all: int


class Shares:
    """The quotas that were set: `blocks` in the order in which namespaces came by them, and `sequences`. `ranked`: namespaces
    that ever said what something is worth.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.blocks: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.ranked: set[str] = set()

    def set(self, namespace: str, blocks: int | None, sequences: int | None) -> None:
        for quotas, quota in ((self.blocks, blocks), (self.sequences, sequences)):
            if quota is None:
                quotas.pop(namespace, None)
            else:
                quotas[namespace] = quota

    def most_blocks(self, namespace: str) -> int:
        """The largest quota that the others leave."""
        others = sum(blocks for name, blocks in self.blocks.items() if name != namespace)
        return self._oracle.num_blocks - others

    def share_of(self, namespace: str) -> str:
        owner = owner_of(namespace)
        return owner if owner in self.blocks else COMMON

    def sizes(self) -> dict[str, int]:
        """Blocks of each share, the common one first."""
        return {COMMON: self._oracle.num_blocks - sum(self.blocks.values()), **self.blocks}

    # -- who may go on, of what each op says ------------------------------------------------------------------------------

    def passes(self, namespace: str, num_more: int) -> bool:
        """Whether so many more sequences would be more than its quota allows."""
        return bool(num_more) and self._num_open(namespace) + num_more > self.sequences.get(
            owner_of(namespace), 1 << 62
        )

    def opened(self, branch: Branch) -> None:
        assert not self.passes(branch.namespace, 1), f"{branch} was opened beyond {self.sequences[branch.namespace]}"

    def refused(self, op: StepOp, error: RadixKVError) -> None:
        """An op found too few blocks or sequences: rightly, and it says so in numbers."""
        assert isinstance(error, REFUSALS), error
        assert error.num_needed > error.num_available >= 0, f"{op} answered {error}"
        namespace, num_more = owner_of(self._namespace_of(op)), _num_opened(op)
        is_passed = self.passes(namespace, num_more)
        if isinstance(error, OutOfBlocksError):
            assert not is_passed, f"{op} answered {error!r} where its sequences are too many"
            return
        told = (error.namespace, error.unit, error.quota)
        if is_passed:
            quota = self.sequences[namespace]
            assert told == (namespace, "sequences", quota), f"{op} answered {error!r}"
            left = max(0, quota - self._num_open(namespace))
            assert (error.num_needed, error.num_available) == (num_more, left), f"{op} answered {error!r}"
        else:
            assert told == (namespace, "blocks", self.blocks.get(namespace)), f"{op} answered {error!r}"

    def answered(self, op: StepOp, result: StepResult, before: Snapshot) -> None:
        """An op that was sent alone had this answer: the one that it must have, as far as that can be told beforehand."""
        if not isinstance(op, (AcquireOp, ExtendOp, ForkOp)) or isinstance(result, Pending):
            return
        if isinstance(result, RadixKVError) and not isinstance(result, REFUSALS):
            return
        namespace = self._namespace_of(op)
        least, most = self._needs(op, before)
        room = self._room(namespace, before)
        what = f"{op} needs {least} to {most} blocks of {room} and answered {result!r}"
        if isinstance(result, QuotaError) and result.unit == "sequences":
            return  # as `refused` has seen
        if isinstance(result, REFUSALS):
            has_quota = isinstance(result, QuotaError)
            assert least <= result.num_needed <= most, what
            assert result.num_available == max(0, (room.of_quota or 0) if has_quota else room.in_all), what
        assert isinstance(result, REFUSALS) or least <= max(0, room.in_all), what
        assert not isinstance(result, REFUSALS) or 0 < most > room.in_all, what
        if room.of_quota is not None and least > max(0, room.of_quota):
            assert isinstance(result, QuotaError), what
        elif room.of_quota is None or most <= room.of_quota:
            assert not isinstance(result, QuotaError), what

    def must_fit(self, namespace: str, length: int, before: Snapshot) -> bool:
        """Whether a history of that length fits whatever of it is cached, and may be opened."""
        room = self._room(namespace, before)
        return not self.passes(namespace, 1) and -(-length // self._oracle.block_size) <= room.in_all

    def _room(self, namespace: str, before: Snapshot) -> _Room:
        share = self.share_of(namespace)
        stats, left = before.stats, self.sizes()[share] - self._in_use(before, share)
        in_pool = stats.num_free_blocks + stats.num_evictable_blocks - stats.num_promised_blocks
        return _Room(left if share else None, min(left, in_pool))

    def _in_use(self, before: Snapshot, share: str) -> int:
        return sum(use.num_blocks_in_use for use in before.usage.values() if self.share_of(use.namespace) == share)

    def _needs(self, op: AcquireOp | ExtendOp | ForkOp, before: Snapshot) -> tuple[int, int]:
        """Blocks that an op costs, at least and at most: a partly filled block may have to be copied, or be found unlocked."""
        size = self._oracle.block_size
        if isinstance(op, AcquireOp):
            tokens = tuple(unpack_tokens(op.tokens))
            most = -(-(len(tokens) + op.reserve) // size)
            matched = before.match(op.namespace, tokens) if op.share_prefix else 0
            is_unsure = matched % size > 0 and not op.whole_blocks
            return max(0, most - matched // size - is_unsure), most
        if isinstance(op, ForkOp):
            is_partial = op.position % size > 0
            promised = -(-(op.position + op.reserve) // size) - -(-op.position // size)
            least = op.n * (promised + (is_partial and op.reserve > 0))
            return least, least + is_partial
        branch = self._oracle.branches[op.seq_id]
        if op.num_tokens <= branch.room:
            return 0, 0
        promised = max(len(branch.table), -(-branch.promised_room // size))
        more = max(0, -(-op.num_tokens // size) - promised)
        is_unsure = branch.num_stored % size > 0 and branch.room == branch.num_stored
        return max(0, more - is_unsure), more + is_unsure

    def _namespace_of(self, op: StepOp) -> str:
        return op.namespace if isinstance(op, AcquireOp) else self._oracle.branches[op.seq_id].namespace  # type: ignore[union-attr]  # a match is never refused

    def _num_open(self, namespace: str) -> int:
        owner = owner_of(namespace)
        return sum(owner_of(branch.namespace) == owner for branch in self._oracle.branches.values())

    # -- what is held ---------------------------------------------------------------------------------------------------

    def actors(self, ops: Iterable[StepOp]) -> set[str]:
        """The namespaces that these ops are about; they have not been observed yet."""
        branches = self._oracle.branches
        opened = {op.namespace for op in ops if isinstance(op, AcquireOp)}
        ids = {getattr(op, "seq_id", None) for op in ops if not isinstance(op, AcquireOp)}
        return opened | {branches[seq_id].namespace for seq_id in ids if seq_id in branches}

    def check_neighbours(self, before: Snapshot, after: Snapshot, actors: Collection[str]) -> None:
        """Whoever called took nothing from a share that was within its bounds, and no more than was borrowed from others.

        But for room promised before a quota was lowered below it: the promise is kept, from whichever blocks are left.
        """
        acting, sizes = {self.share_of(namespace) for namespace in actors}, self.sizes()
        if any(self._in_use(before, share) > sizes.get(share, 0) for share in acting):
            return
        for share, size in sizes.items():
            held, left = self._held(before, share), self._held(after, share)
            if share in acting or held == left:
                continue
            assert held > size, f"{left} of {held} blocks are left in a share of {size}, taken by a neighbour"
            assert left >= size, f"{left} of {held} blocks are left in a share of {size}"

    def check_who_gave_way(self, op: StepOp, before: Snapshot, after: Snapshot) -> None:
        """Whoever acquired alone gave up its own branches for what it is over its share, and no more of them where others have
        borrowed.
        """
        if not isinstance(op, AcquireOp) or before.stats.num_evicted_blocks == after.stats.num_evicted_blocks:
            return
        own, sizes = self.share_of(op.namespace), self.sizes()
        evictable = {share for share in sizes if any(not node.lock_ref for node in self._nodes(after, share))}
        is_over = {share for share, size in sizes.items() if self._held(after, share) > size}
        losers = {share for share in sizes if self._lost(before, after, share)}
        assert losers <= {own} or own not in is_over & evictable, f"{op} made {losers} give way, and kept its own"
        lenders = is_over & evictable - {own}
        assert own not in losers or not lenders or self._held(after, own) >= sizes[own], f"{op} gave way to {lenders}"

    def _lost(self, before: Snapshot, after: Snapshot, share: str) -> bool:
        """Whether something is no longer cached in a share."""
        return any(
            not cached <= after.cached.get(namespace, set())
            for namespace, cached in before.cached.items()
            if self.share_of(namespace) == share
        )

    def check_usage(self, before: Snapshot, after: Snapshot) -> None:
        """Assert that each namespace has what its nodes and sequences hold, and that no share has more in use than fits."""
        branches = list(self._oracle.branches.values())
        nodes = [path.node for path in after.paths.values()]
        known = {owner_of(held.namespace) for held in (*nodes, *branches)}
        known |= self.blocks.keys() | self.sequences.keys()
        assert after.usage.keys() == known, f"{sorted(after.usage)} are told of {sorted(known)}"
        for namespace, use in after.usage.items():
            quotas = (self.blocks.get(namespace), self.sequences.get(namespace))
            assert (use.block_quota, use.sequence_quota) == quotas, f"{use}, {quotas} were set"
            self._check_held(
                use,
                [node for node in nodes if owner_of(node.namespace) == namespace],
                [branch for branch in branches if owner_of(branch.namespace) == namespace],
            )
        stats = after.stats
        assert sum(use.num_blocks for use in after.usage.values()) == stats.num_blocks - stats.num_free_blocks
        for share, size in self.sizes().items():
            in_use, was_in_use = self._in_use(after, share), self._in_use(before, share)
            assert in_use <= max(size, was_in_use), f"{in_use} blocks are in use in a share of {size}"

    def _check_held(self, use: NamespaceUsage, nodes: list[NodeInfo], branches: list[Branch]) -> None:
        cached = {block for node in nodes for block in node.block_ids}
        unlocked = sum(len(node.block_ids) for node in nodes if not node.lock_ref)
        seen = len(cached.union(*(branch.table for branch in branches)))
        num_hidden = sum(len(branch.table) for branch in branches if not self._oracle.is_current(branch))
        assert use.num_sequences == len(branches), f"{use}, {len(branches)} sequences are open"
        assert seen <= use.num_blocks <= seen + num_hidden, f"{use}, {seen} blocks are seen"
        size = self._oracle.block_size
        promised = sum(max(0, -(-branch.promised_room // size) - len(branch.table)) for branch in branches)
        num_unsure = sum(branch.promised_room > branch.room for branch in branches)
        least = use.num_blocks - unlocked + promised
        assert least <= use.num_blocks_in_use <= least + num_unsure, f"{use}, expected {least} in use"

    def _held(self, snapshot: Snapshot, share: str) -> int:
        return sum(use.num_blocks for use in snapshot.usage.values() if self.share_of(use.namespace) == share)

    def _in_use(self, snapshot: Snapshot, share: str) -> int:
        return sum(use.num_blocks_in_use for use in snapshot.usage.values() if self.share_of(use.namespace) == share)

    def _nodes(self, snapshot: Snapshot, share: str) -> list[NodeInfo]:
        return [path.node for path in snapshot.paths.values() if self.share_of(path.node.namespace) == share]

    def eviction_order(self, before: Snapshot, num_asked: int) -> EvictionOrder:
        borrowed = {share: self._held(before, share) - size for share, size in self.sizes().items()}
        return EvictionOrder(frozenset(self.blocks), frozenset(self.ranked), num_asked, tuple(borrowed.items()))


class EvictionOrder(NamedTuple):
    """From which share the next blocks go when some are asked for: from the one that has borrowed most, until it has given
    that back or its leaves are gone.

    Attributes:
        owners: namespaces with a share to themselves.
        ranked: those that ever said what something is worth.
        num_missing: blocks that are to go.
        borrowed: by share.
        share: whose turn it is.
        num_due: blocks that it is to give.
    """

    owners: frozenset[str]
    ranked: frozenset[str]
    num_missing: int
    borrowed: tuple[tuple[str, int], ...]
    share: str = COMMON
    num_due: int = 0

    def worth_least(self, leaves: list[NodeInfo]) -> list[NodeInfo]:
        """Of the leaves of each namespace those of its lowest priority."""
        return [
            leaf
            for own in _by_name(leaves, lambda leaf: owner_of(leaf.namespace)).values()
            for leaf in own
            if leaf.priority == min(other.priority for other in own)
        ]

    def next_of(self, leaves: list[NodeInfo], *, is_lru: bool) -> tuple[EvictionOrder, list[NodeInfo]]:
        """Those of which the next one goes, and the order with its share: under LRU of each namespace the one used longest ago,
        of those that never said what anything is worth the oldest. When it is the turn of one that did, its own leaves do not
        tell.
        """
        by_share = _by_name(
            leaves, lambda leaf: owner if (owner := owner_of(leaf.namespace)) in self.owners else COMMON
        )
        order = self
        if self.num_due <= 0 or self.share not in by_share:
            share, borrowed = max(
                ((share, num_blocks) for share, num_blocks in self.borrowed if share in by_share),
                key=lambda each: each[1],
            )
            num_due = self.num_missing if len(self.borrowed) == 1 else min(self.num_missing, max(1, borrowed))
            order = self._replace(share=share, num_due=num_due)
        if not is_lru:
            return order, by_share[order.share]
        groups = _by_name(
            by_share[order.share], lambda leaf: owner if (owner := owner_of(leaf.namespace)) in self.ranked else COMMON
        )
        return order, [min(own, key=lambda leaf: leaf.last_access_s) for own in groups.values()]

    def without(self, num_blocks: int) -> EvictionOrder:
        """What is left to do when so many blocks of its share have gone."""
        return self._replace(
            num_missing=self.num_missing - num_blocks,
            num_due=self.num_due - num_blocks,
            borrowed=tuple((share, num - num_blocks * (share == self.share)) for share, num in self.borrowed),
        )


def _by_name(leaves: Iterable[NodeInfo], name_of: Callable[[NodeInfo], str]) -> dict[str, list[NodeInfo]]:
    groups: dict[str, list[NodeInfo]] = {}
    for leaf in leaves:
        groups.setdefault(name_of(leaf), []).append(leaf)
    return groups


def _num_opened(op: StepOp) -> int:
    if isinstance(op, ForkOp):
        return op.n
    return 1 if isinstance(op, AcquireOp) else 0
