"""`PrefixCache`: the one façade of the core. See `api` for the contract and `forest` for the tree."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from typing import Unpack

from radixkv.core import validation
from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    AcquireOp,
    AcquireOptions,
    AcquireResult,
    AdoptionOp,
    Copy,
    ExtendResult,
    Notice,
    Pending,
    Retention,
    StepOp,
    StepResult,
)
from radixkv.core.cache.adopt_blocks import BlockAdoption
from radixkv.core.cache.manage import Management
from radixkv.core.cache.reads import Reads
from radixkv.core.cache.steps import apply_step
from radixkv.core.errors import InvalidArgumentError, NotCachedError, RadixKVError, UnknownSequenceError
from radixkv.core.inspect.explain import count_missed
from radixkv.core.namespaces import owner_of
from radixkv.core.sequences.lifecycle import close_sequence, open_child, open_sequence, promise
from radixkv.core.sequences.plan import plan_acquire, shared_node
from radixkv.core.sequences.publish import fragment_cover, publish, right_is_free, take_right_or_copy
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.core.tree import allocation
from radixkv.core.tree.block_pool import FollowedPool
from radixkv.core.tree.roots import RootNode

__all__ = ["PrefixCache"]


class PrefixCache(Reads, Management, BlockAdoption):
    """A radix tree of token prefixes over a pool of KV blocks.

    It does the accounting and moves no bytes: its caller holds the K and V tensors, reads and writes them through the block
    tables given here, and carries out the ops of the answers.

    Args:
        num_blocks: size of the pool.
        block_size: token slots per block.
        eviction: the policy that orders eviction, by its name in `eviction.POLICIES`, or a factory of a custom policy.
        event_capacity: how many events are kept for readers that resume, and how many changes may wait to be read; past it
            readers restart with a snapshot. Nothing is recorded without a reader.
        first_event_number: the first sequence number of an event.
        pin_budget: block-seconds that the pins of one namespace may cost, each its blocks times its ttl; half of the pool
            for an hour if None. All pins together protect at most half of the pool, which namespaces share.
        max_waits: how many waits and untaken notices may be outstanding; past it an acquire that may wait is opened at once.
        clock: seconds, monotonic.
        seq_ids: source of the ids of sequences whose caller chooses none.
        follows_freed: record the blocks that become free, for `take_freed`.
        record_key: record what blocks hold, for `take_records`; the number of the life of the pool's memory, with which alone
            the records are accepted again. None: nothing is recorded.

    Raises:
        InvalidArgumentError: a size out of its bound.

    One thread owns a cache, the first that calls it; a call from another raises `WrongThreadError`.
    """

    # -- sequences ----------------------------------------------------------------------------------------------------

    def acquire(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult:
        """Open a sequence on a prompt: lock its cached prefix, take private blocks for the rest.

        Of the block in which the prompt parts from the cached history the common part is reused: by taking its append right,
        or by the COPY in `ops`. O(path) + O(evicted · log n); may evict unlocked leaves.

        Args:
            tokens: the prompt.
            reserve: so many more tokens are promised; they take no blocks until `extend` asks for them. 0 by default.
            namespace: the isolation domain; ``"default"`` by default.
            seq_id: id of the sequence; None: one is chosen.
            share_prefix: False: the sequence matches nothing, and only its own forks match its computed tokens. Its release
                frees all of it. True by default.
            retention: sets the priority of ranges of the history, prompt and generated tokens alike, once it is released with
                `keep`; its forks bear it too. See `retain`. None by default.
            at_least: nothing is locked or opened unless so many leading tokens are cached. 0 by default.
            whole_blocks: True: the match ends at a whole block, so that `ops` is empty and the sequence writes no block of
                another: for callers that cannot copy part of a block. False by default.

        Raises:
            InvalidArgumentError: an empty or unpackable prompt, a negative reserve, an id in use, a bad namespace, an
                `at_least` above the prompt's length.
            NotCachedError: fewer than `at_least` tokens are cached.
            OutOfBlocksError: it does not fit next to the locked and promised blocks; nothing was evicted.
        """
        answer = self._acquire(tokens, waits=False, **options)
        assert isinstance(answer, AcquireResult), "it does not wait"
        return answer

    def acquire_or_wait(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult | Pending:
        """Like `acquire`, but wait for the computation of another sequence in place of repeating it.

        Where an open sequence with a block or more left to compute will publish a block or more of the prompt beyond the
        present match, nothing is opened, locked, stamped or counted as a query. The answer is `Pending` on the one that gets
        furthest; a notice follows, and the caller acquires again. O(log sequences) compares more.

        Without `share_prefix` it never waits. With `at_least` it waits only for a sequence that gets so far, too.
        """
        return self._acquire(tokens, waits=True, **options)

    def apply_acquire(self, op: AcquireOp) -> AcquireResult | Pending:
        """`acquire`, or `acquire_or_wait`, as an op."""
        if not isinstance(op, AcquireOp):
            raise InvalidArgumentError("op", op, "an `AcquireOp`")
        return self._acquire(
            op.tokens,
            op.reserve,
            op.namespace,
            op.seq_id,
            op.waits,
            op.share_prefix,
            op.retention,
            op.at_least,
            op.whole_blocks,
        )

    def _acquire(
        self,
        tokens: TokensLike,
        reserve: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
        seq_id: int | None = None,
        waits: bool = False,
        share_prefix: bool = True,
        retention: SequenceOf[Retention] = (),
        at_least: int = 0,
        whole_blocks: bool = False,
    ) -> AcquireResult | Pending:
        self._enter()
        packed = pack_tokens(tokens)
        validation.check_prompt(packed)
        validation.check_int("reserve", reserve, 0)
        validation.check_namespace(namespace)
        ranges = () if type(retention) is tuple and not retention else validation.check_retention(retention)
        validation.check_flags(waits, share_prefix, whole_blocks)
        if seq_id is not None:
            validation.check_new_id(seq_id, self._sequences)
        forest, length = self._forest, len(packed) // TOKEN_BYTES
        if type(at_least) is not int or at_least:
            validation.check_int("at_least", at_least, 0, length)
        owner = owner_of(namespace)
        account = forest.find_account(owner)
        known_root = forest.roots.get(namespace) if share_prefix else None
        root = RootNode(namespace, account, is_hidden=not share_prefix) if known_root is None else known_root
        walk = found = forest.walk(root, packed)
        num_wanted = at_least
        if whole_blocks:
            num_wanted += -at_least % forest.block_size
            if num_over := walk.matched_bytes % forest.block_bytes:
                walk = forest.walk(root, packed[: walk.matched_bytes - num_over])
        if waits and share_prefix:
            num_matched = walk.matched_bytes // TOKEN_BYTES
            pending = self._join(namespace, packed, max(num_matched, num_wanted - forest.block_size))
            if pending is not None:
                return pending
        if walk.matched_bytes < num_wanted * TOKEN_BYTES:
            raise NotCachedError(walk.matched_bytes // TOKEN_BYTES, at_least)
        plan = plan_acquire(forest, walk, length, reserve)
        allocation.check_capacity(forest, owner, account, plan.num_needed, num_sequences=1)
        if share_prefix and len(packed) // forest.block_bytes > walk.matched_bytes // forest.block_bytes:
            count_missed(self._counters, forest, namespace, packed, found)

        new_id = self._free_ids(1)[0] if seq_id is None else seq_id
        if known_root is None:
            forest.accounts[owner] = account
            if share_prefix:
                forest.roots[namespace] = root
        seq = self._sequences[new_id] = open_sequence(forest, new_id, root, packed, walk, plan)
        seq.retention = ranges
        if self._single_flight.is_active:
            self._single_flight.update(seq)
        if root.pins:
            self._pins.used(root, seq.node, packed[: walk.matched_bytes], walk.child)
        ops = self._copy_ops(plan.source, seq.table, plan.num_kept, walk.matched_bytes)
        num_cached = min(seq.num_stored, length - 1)
        self._counters.count_query(root.account, length, num_cached)
        return AcquireResult(seq.seq_id, num_cached, seq.num_stored, seq.table[:], ops)

    def extend(self, seq_id: int, num_tokens: int) -> ExtendResult:
        """Give room up to the absolute length `num_tokens`; a length already given changes nothing. O(blocks changed).

        The first write into a shared, partly filled block is prepared here: `first_changed` then points at that block and
        `ops` may bring its COPY.

        Raises:
            UnknownSequenceError, InvalidArgumentError: no such sequence; a length that is not positive.
            OutOfBlocksError: neither the promise nor the available blocks cover it.
        """
        self._enter()
        seq = self._sequence(seq_id)
        validation.check_int("num_tokens", num_tokens, 1)
        old_length = len(seq.table)
        if num_tokens <= seq.room:
            return ExtendResult(old_length, array("i"), ())
        forest = self._forest
        needs_copy = seq.shares_last_block and not right_is_free(forest, seq)
        num_taken = forest.table_length(num_tokens) - old_length + needs_copy
        account = seq.root.account
        allocation.check_capacity(forest, owner_of(seq.root.namespace), account, max(0, num_taken - seq.num_promised))

        # The promise is drawn first, so that the blocks taken below no longer count as promised.
        num_promised = max(0, seq.promised_table_length - forest.table_length(num_tokens))
        promise(forest, seq, seq.promised_table_length, min(seq.num_promised, num_promised))
        taken = allocation.allocate(forest, account, num_taken)
        first_changed = old_length
        ops: tuple[Copy, ...] = ()
        if seq.shares_last_block:
            filled = seq.published_bytes
            source = take_right_or_copy(forest, seq)
            if source is not None:
                first_changed -= 1
                del seq.table[first_changed:]
                ops = self._copy_ops(source, taken, 0, filled)
        seq.table.extend(taken)
        seq.room = num_tokens
        if self._single_flight.is_active:
            self._single_flight.update(seq)
        return ExtendResult(first_changed, taken, ops)

    def insert(self, seq_id: int, num_computed: int, new_tokens: TokensLike = b"", position: int | None = None) -> None:
        """Publish the positions below `num_computed`, which hold valid KV; `new_tokens` are appended to the history first.

        A partly filled last block is published as a tail, unless another node covers it. Never allocates, never lowers the
        number of available blocks, leaves the block table as it is. O(new + path).

        Raises:
            UnknownSequenceError: no such sequence.
            InvalidArgumentError: `num_computed` falls, or exceeds the history's length or the room; unpackable tokens; a
                history longer than the pool; a `position` that is not the length of the history before `new_tokens`, as
                after an insert that was aborted.
        """
        self._enter()
        seq = self._sequence(seq_id)
        packed = pack_tokens(new_tokens)
        if position is not None:
            validation.check_int("position", position, 0)
            if position != len(seq.tokens) // TOKEN_BYTES:
                bound = f"{len(seq.tokens) // TOKEN_BYTES}, the length of the history"
                raise InvalidArgumentError("position", position, bound)
        history = (len(seq.tokens) + len(packed)) // TOKEN_BYTES
        validation.check_computed(num_computed, seq.num_computed, seq.room, history)
        if packed:
            capacity = self._forest.pool.num_blocks * self._forest.block_size
            validation.check_int("history", history, 1, capacity + 1)
            seq.append_tokens(packed)
        self._counters.num_inserted_tokens += num_computed - seq.num_computed
        seq.num_computed = num_computed
        publish(self._forest, seq)
        if self._single_flight.is_active:
            self._single_flight.update(seq)

    def fork(
        self, seq_id: int, position: int, n: int = 1, reserve: int = 0, seq_ids: SequenceOf[int] | None = None
    ) -> list[AcquireResult]:
        """Open `n` sequences that share everything of another up to `position`; it runs on. O(path) each, no KV moved.

        A child owns nothing until its first `extend`; only there a partly filled last block may be copied.

        Raises:
            UnknownSequenceError: no such sequence.
            InvalidArgumentError: a position outside [1, num_computed], n outside [1, 2**20], ids in use or not n of them.
            OutOfBlocksError: `reserve` cannot be promised n times; or the children's shared path has to be locked, also
                without a reserve, and all blocks left are promised.
        """
        self._enter()
        seq = self._sequence(seq_id)
        if not seq.num_computed:
            raise InvalidArgumentError("position", position, "behind a computed token, of which there is none yet")
        validation.check_int("position", position, 1, seq.num_computed)
        validation.check_int("n", n, 1, validation.MAX_CHILDREN)
        validation.check_int("reserve", reserve, 0)
        if seq_ids is not None:
            validation.check_new_ids(seq_ids, n, self._sequences)
        forest, end = self._forest, position * TOKEN_BYTES
        shares_last = end % forest.block_bytes > 0
        table_length, promised_length = forest.table_length(position), forest.table_length(position + reserve)
        num_promised = promised_length - table_length + (shares_last and reserve > 0)
        cover = fragment_cover(forest, seq) if end > seq.published_bytes else None
        cover_cost = 1 if cover is not None and not cover.lock_ref else 0
        allocation.check_capacity(
            forest, owner_of(seq.root.namespace), seq.root.account, n * num_promised + cover_cost, num_sequences=n
        )

        new_ids = self._free_ids(n) if seq_ids is None else seq_ids
        publish(forest, seq)
        node = shared_node(forest, seq, end, cover)
        node.used_bytes = max(node.used_bytes, end)
        if seq.table_is_the_path() and end <= seq.published_bytes:
            table = seq.table[:table_length]
        else:
            table = forest.path_blocks(node, table_length)
        children = []
        for child_id in new_ids:
            child = self._sequences[child_id] = open_child(forest, child_id, seq, node, position, table[:])
            if num_promised:
                promise(forest, child, promised_length, num_promised)
            children.append(AcquireResult(child_id, position - 1, position, table[:], ()))
        if seq.root.pins and children:
            self._pins.used(seq.root, self._sequences[children[-1].seq_id].node, seq.tokens[:end])
        self._counters.num_forks += n
        return children

    def release(self, seq_id: int, keep: bool = True) -> None:
        """End a sequence and free its private blocks. O(path).

        With `keep` all its computed tokens stay cached, until evicted. Without, the nodes that only this sequence published and
        used are freed at once; older nodes, and those used by other sequences meanwhile, stay.

        Raises:
            UnknownSequenceError: no such sequence (it was released before).
        """
        self._enter()
        seq = self._sequence(seq_id)
        keep = validation.check_flag("keep", keep)
        del self._sequences[seq_id]
        self._held_times.ended(len(seq.table), self._forest.clock() - seq.opened_s)
        close_sequence(self._forest, seq, keep=keep)
        if self._single_flight.is_active:
            self._single_flight.ended(seq)

    # -- the whole cache ----------------------------------------------------------------------------------------------

    def take_notices(self) -> list[Notice]:
        """Return the outcomes of earlier `Pending` answers since the last call, oldest first. O(notices).

        In process a notice arises inside a call of the cache's own thread: call this after inserts, releases and clears.
        """
        self._enter()
        return self._single_flight.take_notices()

    @property
    def has_untaken(self) -> bool:
        """Whether `take_notices`, the journal or `take_records` have something to give. O(1)."""
        self._enter()
        records = self._forest.records
        has_records = records is not None and records.has_changed
        return has_records or self.journal.size_bytes > 0 or self._single_flight.has_notices

    def take_freed(self) -> array[int]:
        """Return the blocks that became free since the last call, each once: evicted, dropped, or private to a sequence that
        ended. Their former contents match no longer, and they may have been taken again. For callers that mirror blocks
        elsewhere. They also drop the block that holds position `num_stored_tokens` of an acquire or a fork inside it: the
        sequence writes that block on. O(freed). Empty without `follows_freed`.
        """
        self._enter()
        pool = self._forest.pool
        return pool.take_freed() if isinstance(pool, FollowedPool) else array("i")

    def step(
        self, ops: SequenceOf[StepOp | AdoptionOp], refused: Mapping[int, RadixKVError] | None = None
    ) -> list[StepResult]:
        """Apply ops in order. Each succeeds or fails alone: a failed op's error stands in its place, and later ops of this
        Step on the same sequence, or on one that it would have opened, are answered by `AbortedError`.

        `refused`: errors by op index; these ops are not tried and fail with that error.

        Raises:
            InvalidArgumentError: `ops` is no list of ops.
        """
        self._enter()
        validation.check_ops(ops)
        return apply_step(self, ops, refused or {})

    def submit(self, ops: SequenceOf[StepOp]) -> Future[list[StepResult]]:
        """`step`, answered as a future that is complete already."""
        future: Future[list[StepResult]] = Future()
        future.set_result(self.step(ops))
        return future

    # -- inside -------------------------------------------------------------------------------------------------------

    def _sequence(self, seq_id: int) -> Sequence:
        try:
            return self._sequences[seq_id]
        except (KeyError, TypeError):  # unknown, or not an id
            raise UnknownSequenceError(seq_id) from None

    def _free_ids(self, n: int) -> list[int]:
        """The next ids of the source that no open sequence has. Changes nothing else."""
        ids: dict[int, None] = {}
        while len(ids) < n:
            seq_id = next(self._seq_ids, None)
            if seq_id is None:
                raise InvalidArgumentError("seq_ids", "a source of ids that has ended", "one that goes on")
            validation.check_int("seq_id", seq_id, 0, validation.MAX_SEQ_ID)
            if seq_id not in self._sequences:
                ids[seq_id] = None
        return list(ids)

    def _join(self, namespace: str, tokens: bytes, num_matched: int) -> Pending | None:
        if not self._single_flight.is_active:
            self._single_flight.activate(self._sequences.values())
        return self._single_flight.join(namespace, tokens, num_matched)

    def _copy_ops(self, source: int | None, table: array[int], index: int, filled_bytes: int) -> tuple[Copy, ...]:
        """The COPY of a block's filled part, unless eviction made its source the destination."""
        if source is None or table[index] == source:
            return ()
        num_tokens = filled_bytes % self._forest.block_bytes // TOKEN_BYTES
        self._counters.num_copied_tokens += num_tokens
        return (Copy(source, table[index], num_tokens),)
