"""Check of a cached block: recompute it from its tokens and compare.

KV of a block follows from its tokens and from the KV before it. So one forward over the block's own tokens, on the cached
blocks before it, shows whether it is right, however long the branch is. A branch is right if each of its blocks is.

    cached      [block 0][block 1][block 2]     locked by a sequence of its tokens
    computed    [block 0][block 1][scratch]     by another that differs within the block, so that it has a block of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from radixkv.core.api import AcquireOp, AcquireResult, CacheHolder, MatchOp, MatchResult, ReleaseOp
from radixkv.core.errors import InvalidArgumentError, OutOfBlocksError, QuotaError, RadixKVError
from radixkv.core.namespaces import adapter_of
from radixkv.core.tokens import TOKEN_BYTES, num_tokens, pack_tokens, token_array
from radixkv.generation.verification import BlockVerdict, Verification
from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.model.runner import Runner

__all__ = ["verify_block"]

MAX_RELATIVE = 0.4
MAX_LARGEST = 3.0
"""A block differs if, in one layer's K or V, the root mean square of the differences exceeds `MAX_RELATIVE` times that of the
values, or the largest difference exceeds `MAX_LARGEST` times it. Rounding depends on the rest of the batch. With SmolLM2 in
bfloat16 it made 0 with the compiled kernels, 0.025 and 0.25 with torch's, 0.031 and 0.26 with int8 KV, 0.22 and 1.3 with int4.
Any other block is off by 1.0 and more.
"""


def verify_block(
    runner: Runner, holder: CacheHolder, new_seq_id: Callable[[], int], tokens: bytes, namespace: str
) -> Verification:
    """Verify the last block of a cached branch. One forward of `block_size` tokens, three Steps.

    The branch counts as used, and as requested once. A cold branch may be evicted for the scratch block. Nothing is published.

    Args:
        new_seq_id: source of ids for the two sequences.
        tokens: packed ids of the branch up to and with the block, whole blocks.
        namespace: of the cached branch, as the cache lists it.

    Raises:
        InvalidArgumentError: not a whole number of blocks, or an unknown token id. LeaseError, UnavailableError: the cache
            rejected the Step.
    """
    size = runner.pool.block_size
    length = num_tokens(tokens)
    bound = min(runner.max_model_len, runner.pool.num_blocks * size)
    if not 0 < length <= bound or length % size:
        raise InvalidArgumentError("tokens", length, f"a multiple of {size} up to {bound}")
    largest = int(np.frombuffer(tokens, "<u4").max())
    if largest >= runner.vocab_size:
        raise InvalidArgumentError("tokens", largest, f"token ids below {runner.vocab_size}")
    [matched] = holder.step([MatchOp(tokens, namespace)])
    if not isinstance(matched, MatchResult) or matched.num_tokens < length:
        return Verification(BlockVerdict.GONE)
    start = length - size
    token_ids = token_array(tokens[start * TOKEN_BYTES :])
    scratch = tokens[: start * TOKEN_BYTES] + _parted(token_ids, runner.vocab_size)
    cached_id, scratch_id = new_seq_id(), new_seq_id()
    answers = holder.step(
        [
            AcquireOp(tokens, namespace=namespace, seq_id=cached_id),
            AcquireOp(scratch, namespace=namespace, seq_id=scratch_id),
        ]
    )
    opened = [answer for answer in answers if isinstance(answer, AcquireResult)]
    try:
        return _compare(runner, answers, token_ids, adapter_of(namespace))
    finally:
        holder.step([ReleaseOp(answer.seq_id, keep=False) for answer in opened])


def _parted(token_ids: Sequence[int], vocab_size: int) -> bytes:
    """As many ids, each different from the one at its place."""
    return pack_tokens([(token_id + 1 + place % 7) % vocab_size for place, token_id in enumerate(token_ids)])


def _compare(runner: Runner, answers: Sequence[object], token_ids: Sequence[int], adapter: str) -> Verification:
    for answer in answers:
        if isinstance(answer, OutOfBlocksError | QuotaError):
            return Verification(BlockVerdict.NO_ROOM)
        if isinstance(answer, RadixKVError):
            raise answer
    cached, scratch = answers
    assert isinstance(cached, AcquireResult)
    assert isinstance(scratch, AcquireResult)
    for answer in (cached, scratch):
        if answer.ops:
            runner.carry_out(answer.ops)
    last = len(cached.block_table) - 1
    start = last * runner.pool.block_size
    if cached.num_stored_tokens < start + len(token_ids) or scratch.num_stored_tokens != start:
        return Verification(BlockVerdict.GONE)
    windows = runner.pool.windows
    if windows is not None and not windows.has_window(scratch.block_table, start):
        return Verification(BlockVerdict.GONE)
    runner.forward([ForwardRow(token_ids, start, scratch.block_table, start, num_logits=0, adapter=adapter)])
    block_id = cached.block_table[last]
    difference = runner.pool.difference(block_id, scratch.block_table[last])
    if difference is None:
        return Verification(BlockVerdict.GONE)
    differs = difference.relative > MAX_RELATIVE or difference.largest > MAX_LARGEST
    return Verification(BlockVerdict.DIFFERS if differs else BlockVerdict.AGREES, block_id, difference)
