"""radixkv: a radix tree of token prefixes over refcounted KV blocks, and the service and worker around it.

`PrefixCache` holds the tree in this process, `connect` reaches one over gRPC with the same calls. `LLM` generates in this
process. Importing this package imports neither torch nor grpc.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptBlocksOp,
    AdoptOp,
    AdoptResult,
    AdoptSequenceOp,
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
    HintOp,
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
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import (
    AbortedError,
    CorruptionError,
    DeadlineExceededError,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    NotCachedError,
    OutOfBlocksError,
    PermissionDeniedError,
    PinBudgetError,
    PoolHeldError,
    QuotaError,
    RadixKVError,
    StaleIncarnationError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownPoolError,
    UnknownSequenceError,
    WrongThreadError,
)
from radixkv.core.events.subscription import EventSubscription
from radixkv.core.eviction import EvictionPolicy, LRUPolicy
from radixkv.core.tokens import pack_tokens, unpack_tokens

if TYPE_CHECKING:
    from radixkv.client import Credentials, connect
    from radixkv.generation.params import SamplingParams
    from radixkv.worker.llm import LLM

__all__ = [
    "LLM",
    "AbortedError",
    "AcquireOp",
    "AcquireResult",
    "AdoptBlocksOp",
    "AdoptOp",
    "AdoptResult",
    "AdoptSequenceOp",
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
    "HintOp",
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
    "NotCachedError",
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
    "SamplingParams",
    "SetQuotaOp",
    "StaleIncarnationError",
    "TimeHistogram",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownPoolError",
    "UnknownSequenceError",
    "UnpinOp",
    "WrongThreadError",
    "connect",
    "pack_tokens",
    "proto_dir",
    "unpack_tokens",
]


_LATER = {
    "Credentials": "radixkv.client",
    "LLM": "radixkv.worker.llm",
    "SamplingParams": "radixkv.generation.params",
    "connect": "radixkv.client",
}


def proto_dir() -> str:
    """The folder below which ``radixkv/v1/*.proto`` lies: protoc's ``-I``."""
    return str(Path(__file__).resolve().parents[1])


def __getattr__(name: str) -> Any:
    """Import what needs grpc or torch at its first use."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
