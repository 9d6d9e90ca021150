"""The contract of a prefix cache: what every call takes and answers, in process and over gRPC alike.

`PrefixCache` (in process) and `radixkv.connect` (over gRPC) both implement `CacheHolder`, so that a worker cannot tell which
one it holds. A Step is a list of ops that is applied in order; each op succeeds or fails alone.

Who owns which positions of a sequence, as half-open intervals:

    [0, num_stored_tokens)        KV is already there: read it, never write it (slot -1)
    [num_stored_tokens, room)     the sequence's own: its worker writes KV here, in order
    [room, ...)                   not yet given: ask with extend
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, overload

from radixkv.core.errors import RadixKVError
from radixkv.core.explanation import EvictedTokens, EvictionReason, Explanation, MissCause, NamespaceMatch
from radixkv.core.tokens import TokensLike

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_PRIORITY",
    "MAX_PRIORITY",
    "AcquireOp",
    "AcquireResult",
    "BlockTimes",
    "CacheEvent",
    "CacheEventKind",
    "CacheHolder",
    "CacheReader",
    "CacheStats",
    "Copy",
    "EventStats",
    "EvictedTokens",
    "EvictionReason",
    "Explanation",
    "ExtendOp",
    "ExtendResult",
    "ForkOp",
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
    "PoolShape",
    "ReleaseOp",
    "Retention",
    "StepOp",
    "StepResult",
    "Tier",
    "TimeHistogram",
]

DEFAULT_NAMESPACE = "default"

DEFAULT_PRIORITY = 35
MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Size of a block pool. `name` tells pools of one service apart."""

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
    """`num_tokens`: longest cached prefix; `num_device_tokens`: how much of it lies in device blocks."""

    num_tokens: int
    num_device_tokens: int


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


NoticeKind = Literal["published", "gone"]


class Notice(NamedTuple):
    """What came of a `Pending`; whoever was answered by it acquires again.

    `kind`: ``"published"``: the first `num_tokens` tokens of that sequence match now. ``"gone"``: it ended, or its namespace
    was cleared, before they did.
    """

    kind: NoticeKind
    seq_id: int
    num_tokens: int


class ExtendResult(NamedTuple):
    """Room given: `block_ids` replaces `block_table[first_changed:]`; carry out `ops` first."""

    first_changed: int
    block_ids: array[int]
    ops: tuple[Copy, ...]


class CacheStats(NamedTuple):
    """Gauges of now and counters since the pool was made. Failed calls count nowhere. Token counters are in tokens.

    `num_missed_*_tokens` count the whole blocks of acquired prompts that did not match, by cause: nothing went on there, other
    histories did, or it had been evicted (as far as is remembered). `eviction` is the name of the policy that orders eviction.
    """

    num_blocks: int
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_private_blocks: int
    num_evictable_blocks: int
    num_promised_blocks: int
    num_nodes: int
    num_sequences: int
    num_queries: int
    num_query_tokens: int
    num_hit_tokens: int
    num_inserted_tokens: int
    num_forks: int
    num_evicted_blocks: int
    num_copied_tokens: int
    num_pending: int
    num_notices: int
    num_pins: int
    num_pinned_blocks: int
    num_missed_new_tokens: int
    num_missed_parted_tokens: int
    num_missed_evicted_tokens: int
    eviction: str


class TimeHistogram(NamedTuple):
    """Times in seconds, one per block. `counts[i]`: at most `bounds_s[i]` and above the bound before; the last: above all."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


class BlockTimes(NamedTuple):
    """How long blocks live, each field under the name of its metric. Counted per radix node, weighted by its blocks.

    `kv_block_lifetime_seconds`: from when the first block of the node was published to its eviction.
    `kv_block_idle_before_evict_seconds`: from its last use to its eviction.
    `kv_block_reuse_gap_seconds`: from its last use to the acquire that found it, of blocks that nobody held in between; a
    sample, of one such acquire in eight.
    """

    kv_block_lifetime_seconds: TimeHistogram
    kv_block_idle_before_evict_seconds: TimeHistogram
    kv_block_reuse_gap_seconds: TimeHistogram


CacheEventKind = Literal["reset", "stored", "removed", "cleared", "synced"]

Tier = Literal["device", "host", "disk", "remote"]


class CacheEvent(NamedTuple):
    """One change of what is cached. Only whole blocks are told of: a tail is stored once it is full.

    `kind`:

    - ``"stored"``: blocks became matchable. Those above them were stored before.
    - ``"removed"``: blocks are no longer matchable: evicted, withdrawn or replaced by others of the same content.
    - ``"cleared"``: a namespace was cleared; its blocks were told as removed just before.
    - ``"reset"``: forget everything that was told. A snapshot of what is cached follows.
    - ``"synced"``: the snapshot is complete: what was told since the reset is what is cached.

    `sequence_number`: consecutive over all that one reader may see. 0 between a reset and its synced, which has the number
    that the snapshot stands for. `position`: tokens of history above the first block. `tokens`: packed ids of the blocks
    stored, else empty. `block_ids`: int32, one per block. `block_hashes`: uint64, one per block, each standing for the
    namespace and all of the history up to its block's end. `parent_hash`: that of the block above the first; None at the
    beginning of a history and where nothing was stored. `tier`: where the blocks lie.
    """

    sequence_number: int
    kind: CacheEventKind
    namespace: str
    position: int
    tokens: bytes
    block_ids: array[int]
    block_hashes: array[int]
    parent_hash: int | None
    tier: Tier = "device"


class EventStats(NamedTuple):
    """Those who follow the events of a cache.

    `num_event_subscribers`: open subscriptions, a gauge. `num_events_sent`: events handed to them, a counter.
    `num_event_resets`: times that one of them fell so far behind that it had to begin anew, a counter.
    """

    num_event_subscribers: int
    num_events_sent: int
    num_event_resets: int


class PinInfo(NamedTuple):
    """A protected prefix: `tokens`, packed, `num_tokens` of them in `num_blocks` blocks.

    `ttl_s`: how long it is protected after each use; `remaining_s`: how long it will be, if nobody uses it. Where nothing is
    pinned all numbers but `ttl_s` are 0.
    """

    namespace: str
    tokens: bytes
    num_tokens: int
    num_blocks: int
    ttl_s: float
    remaining_s: float


class Retention(NamedTuple):
    """How long a range of a history is worth keeping: positions in [`start`, `end`), to its end if None.

    Unlocked branches of a lower `priority` (0 to 100; 35 is what has none) are evicted before those of a higher one, whatever
    the policy. It lasts for `duration_s` seconds after it was given and after each use; then the range is as any other. None:
    for good. Whole blocks are kept: a block belongs to the range of its first token.
    """

    start: int = 0
    end: int | None = None
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


class NamespaceUsage(NamedTuple):
    """What one namespace has of a pool.

    `num_blocks`: blocks that it owns, cached or private. `num_blocks_in_use`: those of them that cannot be evicted, being
    locked or private, and those promised to its sequences. `block_quota`, `sequence_quota`: see `PrefixCache.set_quota`.
    """

    namespace: str
    num_blocks: int
    num_blocks_in_use: int
    num_sequences: int
    block_quota: int | None
    sequence_quota: int | None


class NodeInfo(NamedTuple):
    """One radix node, parents before children. `parent_id` is 0 for children of a root.

    `last_access_s`, `pinned_until_s`, `retained_until_s`: by the clock of the cache; `pinned_until_s` is 0 where no pin stands
    on the node itself, `retained_until_s` where its `priority` has no end.
    """

    node_id: int
    parent_id: int
    namespace: str
    position: int
    tokens: bytes
    block_ids: tuple[int, ...]
    is_tail: bool
    lock_ref: int
    last_access_s: float
    pinned_until_s: float
    priority: int = DEFAULT_PRIORITY
    retained_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AcquireOp:
    """Open a sequence on `tokens`; see `PrefixCache.acquire`. `seq_id` is chosen by the caller."""

    tokens: bytes
    reserve: int = 0
    namespace: str = DEFAULT_NAMESPACE
    seq_id: int | None = None
    waits: bool = False
    shares: bool = True
    retention: tuple[Retention, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchOp:
    """Ask how much of `tokens` is cached, in the order of the Step; see `PrefixCache.match`."""

    tokens: bytes
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class ExtendOp:
    """Room up to an absolute length; see `PrefixCache.extend`."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class InsertOp:
    """Publish computed KV; see `PrefixCache.insert`."""

    seq_id: int
    num_computed: int
    new_tokens: bytes = b""


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


StepOp = AcquireOp | MatchOp | ExtendOp | InsertOp | ForkOp | ReleaseOp

StepResult = AcquireResult | Pending | MatchResult | ExtendResult | list[AcquireResult] | None | RadixKVError
"""Answer to one op, by its kind: acquire has two; None for insert and release; an error for an op that failed."""


class CacheReader(Protocol):
    """What anyone with the right may ask of a pool, holder or not."""

    def match(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> MatchResult: ...

    def explain(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, also: Sequence[str] = ()
    ) -> Explanation: ...

    def evict(self, num_blocks: int) -> int: ...

    def clear(self, namespace: str = DEFAULT_NAMESPACE) -> int: ...

    def pin(self, tokens: TokensLike, ttl: float | str = "5m", namespace: str = DEFAULT_NAMESPACE) -> PinInfo: ...

    def unpin(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> bool: ...

    def pins(self, namespace: str | None = None) -> list[PinInfo]: ...

    def retain(self, tokens: TokensLike, retention: Sequence[Retention], namespace: str = DEFAULT_NAMESPACE) -> int: ...

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
    """What the one worker attached to a pool may ask of it."""

    @overload
    def acquire(
        self,
        tokens: TokensLike,
        reserve: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
        seq_id: int | None = None,
        waits: Literal[False] = False,
        shares: bool = True,
        retention: Sequence[Retention] = (),
    ) -> AcquireResult: ...

    @overload
    def acquire(
        self,
        tokens: TokensLike,
        reserve: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
        seq_id: int | None = None,
        waits: bool = False,
        shares: bool = True,
        retention: Sequence[Retention] = (),
    ) -> AcquireResult | Pending: ...

    def extend(self, seq_id: int, num_tokens: int) -> ExtendResult: ...

    def insert(self, seq_id: int, num_computed: int, new_tokens: TokensLike = b"") -> None: ...

    def fork(
        self, seq_id: int, position: int, n: int = 1, reserve: int = 0, seq_ids: Sequence[int] | None = None
    ) -> list[AcquireResult]: ...

    def release(self, seq_id: int, keep: bool = True) -> None: ...

    def take_notices(self) -> list[Notice]:
        """Every notice that has arisen since the last call, oldest first. Each is told once.

        A notice that is taken belongs to a `Pending` whose answer is complete already. With Steps under way: take the
        notices, then apply every answer that is complete, then act upon the notices.
        """
        ...

    def step(self, ops: Sequence[StepOp]) -> list[StepResult]:
        """Apply ops in order; a failed op's error stands in its place."""
        ...

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        """Like `step`, without waiting for the answer. Answers complete in the order of submission."""
        ...
