"""Applying a Step: many ops in one message, in order, each succeeding or failing alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    AcquireOp,
    AcquireResult,
    AdoptBlocksOp,
    AdoptionOp,
    AdoptOp,
    AdoptResult,
    AdoptSequenceOp,
    CacheHolder,
    ClearOp,
    EvictBranchOp,
    EvictOp,
    ExtendOp,
    ForkOp,
    HintOp,
    InsertOp,
    MatchOp,
    MatchResult,
    Pending,
    PinOp,
    ReleaseOp,
    RetainOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import AbortedError, InvalidArgumentError, RadixKVError
from radixkv.core.tokens import TokensLike

__all__ = ["apply_step"]


class Adopter(CacheHolder, Protocol):
    """A `CacheHolder` that adopts the tree and sequences of a lost cache."""

    def apply_acquire(self, op: AcquireOp) -> AcquireResult | Pending: ...

    def match_device(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult: ...

    def adopt(
        self,
        tokens: TokensLike,
        block_ids: Sequence[int],
        num_kept: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
        retention: Sequence[Retention] = (),
    ) -> int: ...

    def adopt_sequence(self, op: AdoptSequenceOp) -> None: ...

    def adopt_blocks(self, block_ids: Sequence[int], records: Sequence[bytes]) -> int: ...


def apply_step(
    cache: Adopter, ops: Sequence[StepOp | AdoptionOp], refused: Mapping[int, RadixKVError]
) -> list[StepResult]:
    """Apply ops in order; a failed op's error stands in its place. Those of `refused`, by index, fail with that error.

    Later ops on a sequence on which one failed, or on one that the failed op would have opened, are not tried and are
    answered by `AbortedError`; the same after an acquire that waits.
    """
    results: list[StepResult] = []
    failed: set[int] = set()
    for index, op in enumerate(ops):
        try:
            if index in refused:
                raise refused[index]
            if failed and not failed.isdisjoint(_named_ids(op)):
                raise AbortedError("an earlier op of this Step failed on this sequence, or waits")
            if (call := _CALLS.get(type(op))) is None:
                raise InvalidArgumentError("op", op, "one of those that a Step takes, such as an AcquireOp")
            result = call(cache, op)
            results.append(result)
            if isinstance(result, Pending):
                failed.update(_named_ids(op))
        except RadixKVError as error:
            results.append(error)
            failed.update(_named_ids(op))
    return results


_CALLS: dict[type, Callable[[Adopter, Any], StepResult]] = {
    AcquireOp: lambda cache, op: cache.apply_acquire(op),
    ExtendOp: lambda cache, op: cache.extend(op.seq_id, op.num_tokens),
    InsertOp: lambda cache, op: cache.insert(op.seq_id, op.num_computed, op.new_tokens, op.position),
    ForkOp: lambda cache, op: cache.fork(op.seq_id, op.position, op.n, op.reserve, op.seq_ids),
    ReleaseOp: lambda cache, op: cache.release(op.seq_id, op.keep),
    MatchOp: lambda cache, op: cache.match_device(op.tokens, namespace=op.namespace),
    PinOp: lambda cache, op: cache.pin(op.tokens, ttl=op.ttl_s, namespace=op.namespace),
    UnpinOp: lambda cache, op: cache.unpin(op.tokens, namespace=op.namespace),
    RetainOp: lambda cache, op: cache.retain(op.tokens, retention=op.retention, namespace=op.namespace),
    EvictOp: lambda cache, op: cache.evict(op.num_blocks),
    EvictBranchOp: lambda cache, op: cache.evict_branch(op.tokens, namespace=op.namespace),
    ClearOp: lambda cache, op: cache.clear(op.namespace),
    SetQuotaOp: lambda cache, op: cache.set_quota(op.namespace, op.blocks, op.sequences),
    HintOp: lambda cache, op: cache.hint(op.tier, op.saved, op.lost, namespace=op.namespace),
    AdoptOp: lambda cache, op: AdoptResult(
        cache.adopt(op.tokens, op.block_ids, op.num_kept, op.namespace, op.retention)
    ),
    AdoptSequenceOp: lambda cache, op: cache.adopt_sequence(op),
    AdoptBlocksOp: lambda cache, op: cache.adopt_blocks(op.block_ids, op.records),
}


def _named_ids(op: StepOp | AdoptionOp) -> list[int]:
    """Ids of the sequences that an op names or opens; empty for an object that is not an op."""
    opened = getattr(op, "seq_ids", None)
    named = [getattr(op, "seq_id", None), *(opened if isinstance(opened, Sequence) else ())]
    return [seq_id for seq_id in named if isinstance(seq_id, int)]
