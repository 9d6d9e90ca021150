"""A block manager for an engine that has block tables of its own, in process: allocate, append, free, fork.

For an engine with a scheduler like that of nano-vllm: admit a sequence if `allocate` succeeds, run the model, call `computed`,
draw a token, and call `append` before the next round; where it fails a sequence must be preempted. Prefixes are reused to the
token, and running sequences share their blocks.

    manager = BlockManager(num_blocks=1024, block_size=16, copy=lambda src, dst, n: kv[:, dst, :n].copy_(kv[:, src, :n]))
    seq = Sequence(prompt_ids)
    while not manager.allocate(seq): ...                        # another sequence must end first
    slots = manager.slot_mapping(seq, seq.num_cached_tokens)    # of the positions to run; -1: its KV is there, do not write
    logits = model(seq.token_ids[seq.num_cached_tokens :], slots, seq.block_table)
    manager.computed(seq)
    seq.token_ids.append(draw(logits))
    if not manager.append(seq): manager.free(seq)               # preempted; `allocate` later finds most of it cached
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from radixkv import AcquireResult, CacheHolder, Copy, OutOfBlocksError, PrefixCache, QuotaError, pack_tokens

__all__ = ["BlockManager", "Sequence"]
Copying = Callable[[int, int, int], object]


@dataclass(eq=False)
class Sequence:
    """A sequence of the engine.

    Attributes:
        token_ids: prompt, and the tokens drawn. The engine appends.
        namespace: nothing is shared across two.
        block_table: block ids, one per `block_size` positions; set by `allocate`, replaced in part by `append`.
        num_cached_tokens: positions from it on are to be run. On a full hit all but one are cached: the last gives the logits.
        num_stored_tokens: positions below it hold KV already and are never written.
    """

    token_ids: list[int]
    namespace: str = "default"
    block_table: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_stored_tokens: int = 0
    seq_id: int = -1  # none is open
    num_reported: int = 0


class BlockManager:
    """The blocks of one pool. One thread.

    Args:
        num_blocks, block_size: of the pool.
        copy: copies the first n slots of a block to another, all layers, K and V: ``copy(src, dst, n)``; on the model's
            stream, so that copies, writes and reads keep the order of the calls.
        cache: of that pool, such as `radixkv.connect(address, PoolShape(num_blocks, block_size))`; None: one in process.
    """

    def __init__(self, num_blocks: int, block_size: int, copy: Copying, cache: CacheHolder | None = None) -> None:
        self.cache: CacheHolder = cache or PrefixCache(num_blocks, block_size)
        self.block_size = block_size
        self._copy = copy

    def allocate(self, seq: Sequence, reserve: int = 0) -> bool:
        """Give a sequence the blocks of its tokens; `reserve`: more tokens for which `append` will not fail. False: no room."""
        try:
            opened = self.cache.acquire(pack_tokens(seq.token_ids), reserve=reserve, namespace=seq.namespace)
        except (OutOfBlocksError, QuotaError):
            return False
        self._open(seq, opened, len(seq.token_ids))
        return True

    def append(self, seq: Sequence) -> bool:
        """Give a sequence room for the KV of all its tokens, most often one more. False: no room, and nothing changed."""
        try:
            room = self.cache.extend(seq.seq_id, len(seq.token_ids))
        except (OutOfBlocksError, QuotaError):
            return False
        self._carry_out(room.ops)
        seq.block_table[room.first_changed :] = room.block_ids
        return True

    def computed(self, seq: Sequence, num_tokens: int | None = None) -> None:
        """Record that the KV of the first `num_tokens` (None: all) is in the blocks: others match them from now on."""
        seq.num_cached_tokens = len(seq.token_ids) if num_tokens is None else num_tokens
        new_tokens = pack_tokens(seq.token_ids[seq.num_reported :])
        self.cache.insert(seq.seq_id, max(seq.num_cached_tokens, seq.num_stored_tokens), new_tokens)
        seq.num_reported = len(seq.token_ids)

    def fork(self, seq: Sequence, position: int, reserve: int = 0) -> Sequence:
        """A sequence that shares the first `position` computed tokens of another, which runs on. No KV moves.

        Raises:
            InvalidArgumentError: more tokens than are computed.
            OutOfBlocksError, QuotaError: no room for `reserve`.
        """
        (opened,) = self.cache.fork(seq.seq_id, position, reserve=reserve)
        child = Sequence(seq.token_ids[:position], seq.namespace)
        self._open(child, opened, position)
        return child

    def free(self, seq: Sequence, keep: bool = True) -> None:
        """End a sequence, finished or preempted. With `keep` its computed tokens stay cached until they are evicted."""
        self.cache.release(seq.seq_id, keep=keep)
        seq.seq_id, seq.block_table = -1, []

    def slot_mapping(self, seq: Sequence, start: int) -> list[int]:
        """Where to write the KV of positions from `start` on, one slot per position; -1: nowhere."""
        size, table, stored = self.block_size, seq.block_table, seq.num_stored_tokens
        return [-1 if p < stored else table[p // size] * size + p % size for p in range(start, len(seq.token_ids))]

    def _open(self, seq: Sequence, opened: AcquireResult, num_reported: int) -> None:
        self._carry_out(opened.ops)
        seq.seq_id, seq.block_table, seq.num_reported = opened.seq_id, list(opened.block_table), num_reported
        seq.num_cached_tokens, seq.num_stored_tokens = opened.num_cached_tokens, opened.num_stored_tokens

    def _carry_out(self, ops: SequenceOf[Copy]) -> None:
        for src, dst, num_tokens in ops:
            self._copy(src, dst, num_tokens)
