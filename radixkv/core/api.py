"""The contract of a prefix cache: arguments and answers of every call, in process and over gRPC alike.

`PrefixCache` (in process) and `radixkv.connect` (over gRPC) both implement `CacheHolder`, so a worker runs on either. A Step is
a list of ops that is applied in order; each op succeeds or fails alone.

The positions of a sequence, as half-open intervals:

    [0, num_stored_tokens)        KV is already there: read it, never write it (slot -1)
    [num_stored_tokens, room)     the sequence's own: its worker writes KV here, in order
    [room, ...)                   not yet given: ask with extend
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypedDict, Unpack

from radixkv.core.errors import RadixKVError
from radixkv.core.explanation import EvictedTokens, EvictionReason, Explanation, MissCause, NamespaceMatch
from radixkv.core.reports import (
    DEFAULT_PRIORITY,
    BlockTimes,
    CacheEvent,
    CacheEventKind,
    CacheStats,
    EventStats,
    NamespaceUsage,
    NodeInfo,
    PinInfo,
    PoolRoute,
    Tier,
    TimeHistogram,
    WorkerLoad,
    WorkerReport,
)
from radixkv.core.tokens import TokensLike

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_PRIORITY",
    "MAX_PRIORITY",
    "AcquireOp",
    "AcquireOptions",
    "AcquireResult",
    "AdoptBlocksOp",
    "AdoptOp",
    "AdoptResult",
    "AdoptSequenceOp",
    "AdoptionOp",
    "BlockTimes",
    "CacheEvent",
    "CacheEventKind",
    "CacheHolder",
    "CacheReader",
    "CacheStats",
    "ClearOp",
    "Copy",
    "EventStats",
    "EvictBranchOp",
    "EvictOp",
    "EvictedTokens",
    "EvictionReason",
    "Explanation",
    "ExtendOp",
    "ExtendResult",
    "ForkOp",
    "HintOp",
    "InsertOp",
    "MatchOp",
    "MatchResult",
    "MissCause",
    "NamespaceMatch",
    "NamespaceUsage",
    "NodeInfo",
    "Notice",
    "NoticeKind",
    "Pending",
    "PinInfo",
    "PinOp",
    "PoolRoute",
    "PoolShape",
    "ReleaseOp",
    "RetainOp",
    "Retention",
    "SetQuotaOp",
    "StepOp",
    "StepResult",
    "Tier",
    "TimeHistogram",
    "UnpinOp",
    "WorkerLoad",
    "WorkerReport",
]

DEFAULT_NAMESPACE = "default"

MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Size of a block pool. `name` identifies it among the pools of one service."""

    num_blocks: int
    block_size: int = 16
    name: str = "default"


class Copy(NamedTuple):
    """Block op: copy the first `num_tokens` slots of block `src` to block `dst`, all layers, K and V.

    Ops of one answer are carried out in order, before that answer's block tables are used.
    """

    src: int
    dst: int
    num_tokens: int


class MatchResult(NamedTuple):
    """`num_tokens`: longest cached prefix; `num_device_tokens`: how much of it lies in device blocks.

    `num_host_tokens`, `num_disk_tokens`: how many of the tokens after it, up to the first block that is nowhere, lie in host
    memory and on disk below the pool. These are hints of the holder: a request that goes there is likely to load them.
    """

    num_tokens: int
    num_device_tokens: int
    num_host_tokens: int = 0
    num_disk_tokens: int = 0


class AcquireResult(NamedTuple):
    """An opened sequence.

    `num_cached_tokens` = min(num_stored_tokens, length - 1): how many prompt tokens need not be computed.
    `num_stored_tokens`: positions below it already hold KV. `block_table`: logical block index -> block id, int32.
    `ops`: carry them out first, in order.
    """

    seq_id: int
    num_cached_tokens: int
    num_stored_tokens: int
    block_table: array[int]
    ops: tuple[Copy, ...]


class Pending(NamedTuple):
    """An acquire that may wait, and does: nothing was opened.

    `seq_id` is computing the prompt's next tokens; `num_tokens`: how many leading tokens of the prompt it will have published
    once it has computed all that it has room and tokens for. One `Notice` of just these two numbers follows.
    """

    seq_id: int
    num_tokens: int


NoticeKind = Literal["published", "gone", "lost"]


class Notice(NamedTuple):
    """The outcome of a `Pending`, after which its caller acquires again; or the loss of a sequence.

    `kind`: ``"published"``: the first `num_tokens` tokens of that sequence match now. ``"gone"``: it ended, its namespace was
    cleared, or the service was restarted, before they did. ``"lost"``: a restarted service did not adopt the sequence, so its
    blocks are no longer its own and the holder computes it again; `num_tokens` is 0.
    """

    kind: NoticeKind
    seq_id: int
    num_tokens: int


class ExtendResult(NamedTuple):
    """Room given: `block_ids` replaces `block_table[first_changed:]`; carry out `ops` first."""

    first_changed: int
    block_ids: array[int]
    ops: tuple[Copy, ...]


class AdoptResult(NamedTuple):
    """`num_tokens`: leading tokens of an adopted history that match now, in its own blocks or in others."""

    num_tokens: int


class Retention(NamedTuple):
    """The eviction priority of a range of a history: positions in [`start`, `end`), to the history's end if None.

    Within a namespace unlocked branches of a lower `priority` (0 to 100; 35 by default) are evicted before those of a higher
    one, whatever the policy; how much of each namespace is evicted does not depend on it. It lasts for `duration_s` seconds
    after it was given and after each use; then the range has the default again. None: forever. It applies to whole blocks: a
    block belongs to the range of its first token.
    """

    start: int = 0
    end: int | None = None
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


class AcquireOptions(TypedDict, total=False):
    """Options of `acquire` and `acquire_or_wait`; see `PrefixCache.acquire`. Their defaults are those of `AcquireOp`."""

    reserve: int
    namespace: str
    seq_id: int | None
    share_prefix: bool
    retention: Sequence[Retention]
    at_least: int
    whole_blocks: bool


@dataclass(frozen=True, slots=True)
class AcquireOp:
    """Open a sequence on `tokens`; see `PrefixCache.acquire`. `seq_id` is chosen by the caller.

    `waits`: the op is that of `PrefixCache.acquire_or_wait`.
    """

    tokens: bytes
    reserve: int = 0
    namespace: str = DEFAULT_NAMESPACE
    seq_id: int | None = None
    waits: bool = False
    share_prefix: bool = True
    retention: tuple[Retention, ...] = ()
    at_least: int = 0
    whole_blocks: bool = False


@dataclass(frozen=True, slots=True)
class MatchOp:
    """Return how much of `tokens` is cached, in the order of the Step; see `PrefixCache.match`."""

    tokens: bytes
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class PinOp:
    """Protect the cached prefix of `tokens` for `ttl_s` after each use, in the order of the Step; see `PrefixCache.pin`."""

    tokens: bytes
    ttl_s: float
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class UnpinOp:
    """End the pin of just these tokens; see `PrefixCache.unpin`."""

    tokens: bytes
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class RetainOp:
    """Set the retention of cached ranges; see `PrefixCache.retain`."""

    tokens: bytes
    retention: tuple[Retention, ...]
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class EvictOp:
    """Evict until `num_blocks` blocks are freed; see `PrefixCache.evict`."""

    num_blocks: int


@dataclass(frozen=True, slots=True)
class EvictBranchOp:
    """Evict the branches below a prefix; see `PrefixCache.evict_branch`."""

    tokens: bytes
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class ClearOp:
    """Forget a namespace; see `PrefixCache.clear`."""

    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class SetQuotaOp:
    """Bound a namespace's use of the pool; see `PrefixCache.set_quota`."""

    namespace: str = DEFAULT_NAMESPACE
    blocks: int | None = None
    sequences: int | None = None


@dataclass(frozen=True, slots=True)
class HintOp:
    """Report blocks below the pool; see `PrefixCache.hint`."""

    tier: Tier
    saved: Sequence[int] = ()
    lost: Sequence[int] = ()
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class ExtendOp:
    """Give room up to an absolute length; see `PrefixCache.extend`."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class InsertOp:
    """Publish computed KV; see `PrefixCache.insert`."""

    seq_id: int
    num_computed: int
    new_tokens: bytes = b""
    position: int | None = None


@dataclass(frozen=True, slots=True)
class ForkOp:
    """Open `n` children at `position`; see `PrefixCache.fork`."""

    seq_id: int
    position: int
    n: int = 1
    reserve: int = 0
    seq_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReleaseOp:
    """End a sequence; see `PrefixCache.release`."""

    seq_id: int
    keep: bool = True


@dataclass(frozen=True, slots=True)
class AdoptOp:
    """Report a history that blocks hold, after the cache was lost; see `PrefixCache.adopt`."""

    tokens: bytes
    block_ids: array[int]
    num_kept: int = 0
    namespace: str = DEFAULT_NAMESPACE
    retention: tuple[Retention, ...] = ()


@dataclass(frozen=True, slots=True)
class AdoptSequenceOp:
    """Report an open sequence, after the cache was lost; see `PrefixCache.adopt_sequence`."""

    seq_id: int
    tokens: bytes
    block_table: array[int]
    num_computed: int
    room: int
    reserve: int = 0
    namespace: str = DEFAULT_NAMESPACE
    share_prefix: bool = True
    same_tree_as: int | None = None
    retention: tuple[Retention, ...] = ()
    shares_last: bool = False
    last_record: bytes = b""


@dataclass(frozen=True, slots=True)
class AdoptBlocksOp:
    """Play back records of blocks, after the cache was lost; see `PrefixCache.adopt_blocks`."""

    block_ids: array[int]
    records: tuple[bytes, ...]


StepOp = (
    AcquireOp
    | ExtendOp
    | InsertOp
    | ForkOp
    | ReleaseOp
    | MatchOp
    | PinOp
    | UnpinOp
    | RetainOp
    | EvictOp
    | EvictBranchOp
    | ClearOp
    | SetQuotaOp
    | HintOp
)
"""Every call of a `CacheHolder` that changes its pool, and `match`."""

AdoptionOp = AdoptOp | AdoptSequenceOp | AdoptBlocksOp
"""The first ops that a holder sends to a cache that was lost."""

StepResult = (
    AcquireResult
    | Pending
    | MatchResult
    | PinInfo
    | NamespaceUsage
    | ExtendResult
    | AdoptResult
    | list[AcquireResult]
    | int
    | None
    | RadixKVError
)
"""Answer to one op, as of the call of that name: acquire has two; None for insert, release, hint and an adopted sequence; an
error for an op that failed.
"""


class CacheReader(Protocol):
    """Calls on a pool for any client with the right, holder or not."""

    def match(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult: ...

    def explain(
        self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE, other_namespaces: Sequence[str] = ()
    ) -> Explanation: ...

    def evict(self, num_blocks: int) -> int: ...

    def evict_branch(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> int: ...

    def clear(self, namespace: str = DEFAULT_NAMESPACE) -> int: ...

    def pin(self, tokens: TokensLike, *, ttl: float | str = "5m", namespace: str = DEFAULT_NAMESPACE) -> PinInfo: ...

    def unpin(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> bool: ...

    def pins(self, namespace: str | None = None) -> list[PinInfo]: ...

    def retain(
        self, tokens: TokensLike, *, retention: Sequence[Retention], namespace: str = DEFAULT_NAMESPACE
    ) -> int: ...

    def set_quota(
        self, namespace: str = DEFAULT_NAMESPACE, blocks: int | None = None, sequences: int | None = None
    ) -> NamespaceUsage: ...

    def usage(self, namespace: str | None = None) -> list[NamespaceUsage]: ...

    def stats(self) -> CacheStats: ...

    def block_times(self) -> BlockTimes: ...

    def events(self, start: int = 0, namespace: str | None = None) -> list[CacheEvent]: ...

    def event_stats(self) -> EventStats: ...

    def dump(self, namespace: str | None = None) -> list[NodeInfo]: ...

    def check(self) -> None: ...


class CacheHolder(CacheReader, Protocol):
    """Calls on a pool for its holder: the one worker attached to it."""

    def acquire(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult: ...

    def acquire_or_wait(self, tokens: TokensLike, **options: Unpack[AcquireOptions]) -> AcquireResult | Pending: ...

    def extend(self, seq_id: int, num_tokens: int) -> ExtendResult: ...

    def insert(
        self, seq_id: int, num_computed: int, new_tokens: TokensLike = b"", position: int | None = None
    ) -> None: ...

    def fork(
        self, seq_id: int, position: int, n: int = 1, reserve: int = 0, seq_ids: Sequence[int] | None = None
    ) -> list[AcquireResult]: ...

    def release(self, seq_id: int, keep: bool = True) -> None: ...

    def hint(
        self, tier: Tier, saved: Sequence[int] = (), lost: Sequence[int] = (), *, namespace: str = DEFAULT_NAMESPACE
    ) -> None: ...

    def take_notices(self) -> list[Notice]:
        """Return every notice since the last call, oldest first. Each is returned once.

        A notice that is returned belongs to a `Pending` whose answer is complete already. With Steps under way: take the
        notices, then apply every complete answer, then act upon the notices. A loss is noticed before any later answer is
        complete: take notices again before KV is written into the blocks of these answers.
        """
        ...

    def step(self, ops: Sequence[StepOp]) -> list[StepResult]:
        """Apply ops in order; a failed op's error stands in its place."""
        ...

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Like `step`, without waiting for the answer. Answers complete in the order of submission."""
        ...
