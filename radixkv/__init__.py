"""radixkv: a radix tree of token prefixes over refcounted KV blocks, and the service and worker around it.

`PrefixCache` holds the tree in this process, `connect` reaches one over gRPC with the same calls. Importing this package
imports neither torch nor grpc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    BlockTimes,
    CacheEvent,
    CacheHolder,
    CacheReader,
    CacheStats,
    ClearOp,
    Copy,
    EventStats,
    EvictBranchOp,
    EvictedTokens,
    EvictOp,
    Explanation,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchOp,
    MatchResult,
    NamespaceMatch,
    NamespaceUsage,
    NodeInfo,
    Notice,
    Pending,
    PinInfo,
    PinOp,
    PoolShape,
    ReleaseOp,
    RetainOp,
    Retention,
    SetQuotaOp,
    TimeHistogram,
    UnpinOp,
)
from radixkv.core.cache import PrefixCache
from radixkv.core.errors import (
    AbortedError,
    CorruptionError,
    DeadlineExceededError,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    OutOfBlocksError,
    PermissionDeniedError,
    PinBudgetError,
    PoolHeldError,
    QuotaError,
    RadixKVError,
    StaleIncarnationError,
    UnauthenticatedError,
    UnavailableError,
    UnknownPoolError,
    UnknownSequenceError,
    WrongThreadError,
)
from radixkv.core.event_subscription import EventSubscription
from radixkv.core.eviction import EvictionPolicy, LRUPolicy
from radixkv.core.tokens import pack_tokens, unpack_tokens

if TYPE_CHECKING:
    from radixkv.client import Credentials, connect

__all__ = [
    "AbortedError",
    "AcquireOp",
    "AcquireResult",
    "BlockTimes",
    "CacheEvent",
    "CacheHolder",
    "CacheReader",
    "CacheStats",
    "ClearOp",
    "Copy",
    "CorruptionError",
    "Credentials",
    "DeadlineExceededError",
    "EventStats",
    "EventSubscription",
    "EvictBranchOp",
    "EvictOp",
    "EvictedTokens",
    "EvictionPolicy",
    "Explanation",
    "ExtendOp",
    "ExtendResult",
    "ForkOp",
    "InsertOp",
    "InvalidArgumentError",
    "LRUPolicy",
    "LeaseError",
    "LimitError",
    "MatchOp",
    "MatchResult",
    "NamespaceMatch",
    "NamespaceUsage",
    "NodeInfo",
    "Notice",
    "OutOfBlocksError",
    "Pending",
    "PermissionDeniedError",
    "PinBudgetError",
    "PinInfo",
    "PinOp",
    "PoolHeldError",
    "PoolShape",
    "PrefixCache",
    "QuotaError",
    "RadixKVError",
    "ReleaseOp",
    "RetainOp",
    "Retention",
    "SetQuotaOp",
    "StaleIncarnationError",
    "TimeHistogram",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownPoolError",
    "UnknownSequenceError",
    "UnpinOp",
    "WrongThreadError",
    "connect",
    "pack_tokens",
    "unpack_tokens",
]


def __getattr__(name: str) -> Any:
    """Import `connect` and `Credentials`, and grpc with them, at their first use."""
    if name in ("connect", "Credentials"):
        from radixkv import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
