"""Adoption: rebuilds the tree and the open sequences of a cache that was lost, as its holder reports them.

Running sequences come first; of those that share blocks, first the one with the most computed tokens. Each claims the blocks of
its table that are not in the tree yet. Then cached histories follow, each as a continuation of the one before it:

    adopt([system, question A])   ─▶  root ── [system, 128 blocks] ─┬─ [question A, 3 blocks]
    adopt([question B], kept=128) ─▶                                └─ [question B, 7 blocks]

Adopted histories are older than any `clear` meanwhile: none of a cleared namespace returns. Sequences that shared it go on
sharing among themselves, in a hidden tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from radixkv.core import validation
from radixkv.core.api import DEFAULT_NAMESPACE, AdoptSequenceOp, Retention
from radixkv.core.cache.state import CacheState
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import owner_of
from radixkv.core.nodes.node import Node
from radixkv.core.sequences.lifecycle import close_sequence, promise
from radixkv.core.sequences.publish import publish
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.retain import retain_path
from radixkv.core.tree.roots import RootNode
from radixkv.core.tree.surgery import end_at, stand_node, swap_block

__all__ = ["Adoption", "block_table"]

_PASSING_ID = -1
"""Of the sequence that publishes an adopted history; it is closed before the call returns."""


@dataclass(frozen=True, slots=True)
class _Swap:
    """Exchange of two blocks: `to_tree`, private to `keeper`, replaces `from_tree` in the tree; `reader` gets `from_tree`."""

    index: int
    from_tree: int
    to_tree: int
    keeper: Sequence
    reader: Sequence

    def node(self, forest: Forest) -> Node:
        """The node whose block is replaced."""
        node = self.keeper.node
        while node.start_bytes > self.index * forest.block_bytes:
            assert node.parent is not None, "a block lies below the root"
            node = node.parent
        return node

    def carry_out(self, forest: Forest) -> None:
        node = self.node(forest)
        swap_block(forest, self.keeper.root, node, self.index - node.start_bytes // forest.block_bytes, self.to_tree)
        self.keeper.kept_blocks.remove(self.to_tree)
        self.reader.kept_blocks.append(self.from_tree)


class Adoption(CacheState):
    """`adopt` and `adopt_sequence` of a `PrefixCache`."""

    def adopt(
        self,
        tokens: TokensLike,
        block_ids: SequenceOf[int],
        num_kept: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
        retention: SequenceOf[Retention] = (),
    ) -> int:
        """Cache a history whose KV lies in blocks already, in a pool with no blocks taken; returns how much of it then matches.

        The history is the first `num_kept` tokens (whole blocks) of the one adopted last, followed by `tokens`, which lie in
        `block_ids`. It ends at the first block that another history owns. Tokens that are cached already stay in their blocks.
        Nothing of a namespace that was cleared before is adopted. `retention` applies to the ranges that lie in these blocks.
        O(history).

        Raises:
            InvalidArgumentError: no tokens, not as many blocks as they need, more kept than there was, a bad namespace; or
                blocks of the pool were taken by other calls already.
        """
        self._enter()
        last_namespace, last = self._adopted
        self._adopted = (DEFAULT_NAMESPACE, b"")  # so that no history continues a rejected one
        forest, packed, table = self._forest, pack_tokens(tokens), block_table(block_ids)
        validation.check_prompt(packed)
        validation.check_namespace(namespace)
        ranges = validation.check_retention(retention)
        self._require_untaken()
        most = len(last) // TOKEN_BYTES if namespace == last_namespace else 0
        validation.check_int("num_kept", num_kept, 0, most)
        if num_kept % forest.block_size:
            raise InvalidArgumentError("num_kept", num_kept, f"whole blocks of {forest.block_size} tokens")
        _check_length("block_ids", table, forest.table_length(len(packed) // TOKEN_BYTES))
        history = last[: num_kept * TOKEN_BYTES] + packed
        self._adopted = (namespace, history)
        if self._is_cleared(namespace):
            return 0

        root = forest.roots.get(namespace) or RootNode(namespace, forest.account_of(namespace))
        walk = forest.walk(root, history)
        num_matched = walk.matched_bytes // forest.block_bytes
        num_skipped = num_matched - num_kept // forest.block_size
        fresh = table[num_skipped:] if num_skipped >= 0 else []
        num_fresh = forest.pool.num_claimable(array("i", fresh))
        end_bytes = min(len(history), (num_matched + num_fresh) * forest.block_bytes)
        if end_bytes > walk.matched_bytes:
            forest.roots[namespace] = root
            claimed = array("i", fresh[:num_fresh])
            seq = _stand(forest, _PASSING_ID, root, history[:end_bytes], walk, num_matched, array("i"), claimed)
            seq.num_computed = seq.room = end_bytes // TOKEN_BYTES
            publish(forest, seq)
            close_sequence(forest, seq, keep=True)
        if ranges:
            self._retain_adopted(root, history, table, num_kept, ranges)
        forest.forget_if_empty(root)
        return max(end_bytes, walk.matched_bytes) // TOKEN_BYTES

    def _retain_adopted(
        self, root: RootNode, history: bytes, table: array[int], num_kept: int, ranges: SequenceOf[Retention]
    ) -> None:
        """Give a history its retention as far as it lies in the blocks that it was adopted with."""
        forest = self._forest
        walk = forest.walk(root, history)
        num_blocks = forest.table_length(walk.matched_bytes // TOKEN_BYTES)
        node = walk.child or walk.node
        path = forest.path_blocks(node, num_blocks)[num_kept // forest.block_size :]
        own = next((i for i, (at, told) in enumerate(zip(path, table, strict=False)) if at != told), len(path))
        if own:
            retain_path(forest, root, node, ranges, end_bytes=num_kept * TOKEN_BYTES + own * forest.block_bytes)

    def adopt_sequence(self, op: AdoptSequenceOp) -> None:
        """Open a sequence as it was in a cache that was lost, on the blocks of its table.

        Its computed tokens are published as `insert` would. Call it before any `adopt`, except for the `adopt` of its last
        block where more is cached there than it has computed. Of sequences that share blocks, call it first for the one with
        the most computed tokens, and of equals for the one with the append right: the others have no room there.
        `same_tree_as` names a sequence adopted before in the same tree; it is needed only without `share_prefix`.
        `shares_last`: it was forked inside its last block and has had no other room since, so that with `reserve` a copy of
        the block is promised. `last_record`: the kept record of the block of its last computed token stands for that `adopt`.
        O(history).

        Two tails below one node differ in their tokens. Of two partly filled blocks with the same computed tokens, both read by
        several sequences, the second is a tail only if more of its tokens are known, by a sequence or by `last_record`. In a
        hidden tree no block has a record: one sequence keeps that block, and the others are rejected.

        Raises:
            InvalidArgumentError: an argument out of its bound; a block of its table that another sequence owns, and that it may
                write to, has other tokens in, or reads where it cannot be a tail; or blocks of the pool were taken by other
                calls already. Its message names the sequence. Nothing changed.
        """
        self._enter()
        if not isinstance(op, AdoptSequenceOp):
            raise InvalidArgumentError("op", op, "an `AdoptSequenceOp`")
        try:
            self._adopt_sequence(op)
        except InvalidArgumentError as error:
            error.args = (f"sequence {op.seq_id!r} is not adopted: {error}",)
            raise

    def _adopt_sequence(self, op: AdoptSequenceOp) -> None:
        forest, packed, table = self._forest, pack_tokens(op.tokens), block_table(op.block_table)
        seq_id, num_computed, room = op.seq_id, op.num_computed, op.room
        namespace, share_prefix = op.namespace, op.share_prefix
        self._check_sequence(op, packed, table)
        known_root = self._root_of_sequence(op.same_tree_as, namespace) if op.same_tree_as is not None else None
        if share_prefix and self._is_cleared(namespace):
            known_root, share_prefix = self._cleared_root(namespace), False
        elif known_root is None and share_prefix:
            known_root = forest.roots.get(namespace)
        if op.last_record and share_prefix and num_computed:
            self._adopt_last_block(packed[: num_computed * TOKEN_BYTES], table, namespace, op.last_record)
            known_root = forest.roots.get(namespace)
        root = known_root or RootNode(namespace, forest.account_of(namespace), is_hidden=not share_prefix)
        walk = forest.walk(root, packed[: num_computed * TOKEN_BYTES])
        num_matched = walk.matched_bytes // forest.block_bytes
        swaps, kept = self._find_swaps(root, forest.path_blocks(walk.child or walk.node, num_matched), table)
        lender = None
        if room == num_computed > num_matched * forest.block_size and num_matched == len(table) - 1:
            lender = self._lender(root, walk, packed[: num_computed * TOKEN_BYTES], table, swaps)
        if lender is not None:
            walk = walk._replace(child=lender)
        claimed = array("i") if lender is not None else table[num_matched:]
        num_claimable = forest.pool.num_claimable(kept + claimed)
        if num_claimable < len(kept) + len(claimed):
            forest.forget_if_empty(root)
            foreign = f"one with block {(kept + claimed)[num_claimable]}"
            raise InvalidArgumentError("block_table", foreign, "of blocks that are its own, or on its path")

        for swap in swaps:
            swap.carry_out(forest)
        if share_prefix:
            forest.roots[namespace] = root
        num_stood = num_matched + (lender is not None)
        seq = _stand(forest, seq_id, root, packed, walk, num_stood, kept, claimed)
        seq.table = table
        if lender is not None:
            seq.published_bytes, seq.shares_last_block = walk.matched_bytes, True
        seq.num_stored = seq.num_computed = num_computed
        seq.room, seq.retention, seq.opened_s = room, validation.check_retention(op.retention), forest.clock()
        self._sequences[seq_id] = seq
        publish(forest, seq)
        promised_length = forest.table_length(room + op.reserve)
        needs_copy = (seq.shares_last_block or op.shares_last) and op.reserve > 0
        promise(forest, seq, promised_length, promised_length - len(table) + needs_copy)
        if self._single_flight.is_active:
            self._single_flight.update(seq)

    def _check_sequence(self, op: AdoptSequenceOp, packed: bytes, table: array[int]) -> None:
        capacity = self._forest.pool.num_blocks * self._forest.block_size
        validation.check_prompt(packed)
        validation.check_namespace(op.namespace)
        validation.check_new_id(op.seq_id, self._sequences)
        validation.check_int("room", op.room, 1, capacity)
        validation.check_int("num_computed", op.num_computed, 0, min(op.room, len(packed) // TOKEN_BYTES))
        validation.check_int("reserve", op.reserve, 0, capacity)
        validation.check_retention(op.retention)
        if not isinstance(op.last_record, bytes):
            raise InvalidArgumentError("last_record", op.last_record, "bytes")
        self._require_untaken()
        _check_length("block_table", table, self._forest.table_length(op.room))

    def _adopt_last_block(self, computed: bytes, table: array[int], namespace: str, packed: bytes) -> None:
        """Adopt the block of a sequence's last computed token, where its record has more of a cached history than that."""
        forest, index = self._forest, (len(computed) - TOKEN_BYTES) // self._forest.block_bytes
        start = index * forest.block_bytes
        record = None if forest.records is None else forest.records.read(table[index], packed)
        if (
            record is None
            or len(record.tokens) <= len(computed) - start
            or not record.tokens.startswith(computed[start:])
        ):
            return
        names = (
            namespace_hash(namespace),
            *chained_hashes(namespace_hash(namespace), computed[:start], forest.block_bytes),
        )
        if record.above == names[-1]:
            self.adopt(computed[:start] + record.tokens, table[: index + 1], 0, namespace)

    def _is_cleared(self, namespace: str) -> bool:
        """Whether the namespace, or the one that it is derived of, was cleared."""
        return namespace in self._cleared or owner_of(namespace) in self._cleared

    def _cleared_root(self, namespace: str) -> RootNode:
        """The root of the hidden tree that the sequences of a cleared namespace share."""
        root = self._cleared.get(namespace)
        if root is None or not any(seq.root is root for seq in self._sequences.values()):
            root = RootNode(namespace, self._forest.account_of(namespace), is_hidden=True)
            self._cleared[namespace] = root
        return root

    def _find_swaps(self, root: RootNode, path: array[int], table: array[int]) -> tuple[list[_Swap], array[int]]:
        """The swaps needed by a table whose first blocks lie on that path, and the blocks that stay private to its sequence."""
        strange = [(index, own) for index, (at, own) in enumerate(zip(path, table, strict=False)) if at != own]
        swaps = [swap for index, own in strange if (swap := self._find_swap(root, index, path[index], own))]
        swapped = {swap.to_tree for swap in swaps}
        return swaps, array("i", (own for _, own in strange if own not in swapped))

    def _find_swap(self, root: RootNode, index: int, in_tree: int, own: int) -> _Swap | None:
        """The swap for a block that a sequence reads through the tree and that was adopted as another's private one.

        A block of the same tokens takes its place in the tree, so that it is private to one sequence.
        """
        if self._forest.pool.num_claimable(array("i", [own])):
            return None
        open_here = [seq for seq in self._sequences.values() if seq.root is root]
        keeper = next((seq for seq in open_here if own in seq.kept_blocks), None)
        readers = [seq for seq in open_here if seq.table[index : index + 1] == array("i", [in_tree])]
        return _Swap(index, in_tree, own, keeper, readers[0]) if keeper is not None and len(readers) == 1 else None

    def _find_last_swap(self, root: RootNode, computed: bytes, table: array[int]) -> _Swap | None:
        """The same for the last, partly filled block of a table, which the keeper has filled."""
        index, own = len(table) - 1, table[-1]
        open_here = (seq for seq in self._sequences.values() if seq.root is root)
        keeper = next((seq for seq in open_here if own in seq.kept_blocks), None)
        if keeper is None or keeper.table[index : index + 1] != table[-1:] or not keeper.tokens.startswith(computed):
            return None
        return self._find_swap(root, index, self._forest.path_blocks(keeper.node, index + 1)[index], own)

    def _lender(
        self, root: RootNode, walk: Walk, computed: bytes, table: array[int], swaps: list[_Swap]
    ) -> Node | None:
        """The node in whose block the last, partly filled one of a table lies, all of which is computed; None: it is private.

        Where an adopted sequence holds that block as a private one, because others hold the same tokens, it replaces theirs by
        one more of `swaps`, or is lent to the tree.
        """
        forest, index = self._forest, len(table) - 1
        start = index * forest.block_bytes
        fragment = computed[start:]
        if walk.matched_bytes < len(computed):
            return None
        if (swap := self._find_last_swap(root, computed, table)) is not None:
            swaps.append(swap)
            return swap.node(forest)
        if start > walk.node.end_bytes:
            child = walk.child
            assert child is not None, "a walk past its node ends in a child"
            if child.blocks[(start - child.start_bytes) // forest.block_bytes] == table[index]:
                return child
            if self._owner_of(root, index, table[index]) is None:
                return None
            walk = walk._replace(node=end_at(forest, child, start))
        return _child_with(walk.node, fragment, table[index]) or self._lend(root, walk.node, fragment, table[index])

    def _lend(self, root: RootNode, parent: Node, fragment: bytes, block_id: int) -> Node | None:
        """Attach a sequence's private block below `parent`, as the tail that it was before.

        Its edge begins with `fragment`, and is the longest part of the tokens written there that no sibling has as its edge.
        """
        forest, start = self._forest, parent.end_bytes
        index = start // forest.block_bytes
        owner = self._owner_of(root, index, block_id)
        if owner is None:
            return None
        written = bytes(owner.tokens[start : owner.num_computed * TOKEN_BYTES][: forest.block_bytes - TOKEN_BYTES])
        lengths = range(len(written), len(fragment) - 1, -TOKEN_BYTES)
        names = (written[:length] for length in lengths)
        name = next((name for name in names if not parent.children or name not in parent.children), None)
        if name is None:
            return None
        tail = forest.attach(root, parent, name, array("i", [block_id]))
        tail.writer = owner
        if owner.private_from == index:
            forest.move_lock(root, parent, tail)
            owner.node, owner.private_from, owner.published_bytes = tail, index + 1, tail.end_bytes
        else:
            forest.lock(root, tail)
            owner.kept_blocks.remove(block_id)
            owner.left_tails.append(tail)
        return tail

    def _owner_of(self, root: RootNode, index: int, block_id: int) -> Sequence | None:
        """The sequence of that tree that holds a block as a private one, as block `index` of its table."""
        owner = next((seq for seq in self._sequences.values() if block_id in seq.private_blocks()), None)
        is_there = owner is not None and owner.root is root and owner.table[index : index + 1] == array("i", [block_id])
        return owner if is_there else None

    def _require_untaken(self) -> None:
        if not self._forest.pool.can_claim:
            raise InvalidArgumentError("op", "an adoption", "before any other call has taken blocks of the pool")

    def _root_of_sequence(self, seq_id: int, namespace: str) -> RootNode:
        seq = self._sequences.get(seq_id)
        if seq is None or seq.root.namespace != namespace:
            raise InvalidArgumentError("same_tree_as", seq_id, f"an open sequence of namespace {namespace!r}")
        return seq.root


def _child_with(parent: Node, fragment: bytes, block_id: int) -> Node | None:
    """The child that begins with `fragment` in that block."""
    if not parent.children:
        return None
    return next((child for child in parent.children.beginning_with(fragment) if child.blocks[0] == block_id), None)


def block_table(block_ids: SequenceOf[int]) -> array[int]:
    """Block ids as a table.

    Raises:
        InvalidArgumentError: other values than ids.
    """
    try:
        return array("i", block_ids)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError("block_ids", block_ids, "ids of blocks") from None


def _check_length(argument: str, table: array[int], length: int) -> None:
    if len(table) != length:
        raise InvalidArgumentError(argument, f"{len(table)} blocks", f"the {length} that its tokens need")


def _stand(
    forest: Forest,
    seq_id: int,
    root: RootNode,
    tokens: bytes,
    walk: Walk,
    num_stood: int,
    kept: array[int],
    claimed: array[int],
) -> Sequence:
    """A sequence that stands on the first `num_stood` blocks of a walk, and owns the blocks `kept` and `claimed`."""
    forest.pool.claim(kept + claimed)
    account, num_claimed = root.account, len(kept) + len(claimed)
    account.take(num_claimed)
    account.partition.num_taken += num_claimed
    account.num_sequences += 1
    node = stand_node(forest, walk, num_stood)
    forest.lock(root, node)
    seq = Sequence(seq_id, root, node, tokens, forest.path_blocks(node, num_stood) + claimed)
    seq.kept_blocks = kept
    seq.published_bytes = node.end_bytes
    seq.private_from = num_stood
    node.used_bytes = max(node.used_bytes, node.end_bytes)
    return seq
