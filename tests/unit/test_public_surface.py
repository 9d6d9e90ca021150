"""What `import radixkv` offers, and what it must not cost."""

from __future__ import annotations

import subprocess
import sys

import radixkv

PUBLIC_NAMES = {
    "AbortedError",
    "AcquireOp",
    "AcquireResult",
    "AdoptBlocksOp",
    "AdoptOp",
    "AdoptResult",
    "AdoptSequenceOp",
    "BlockTimes",
    "ClearOp",
    "CacheEvent",
    "CacheHolder",
    "CacheReader",
    "CacheStats",
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
    "LLM",
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
    "PermissionDeniedError",
    "PinBudgetError",
    "PinInfo",
    "PinOp",
    "Pending",
    "PoolHeldError",
    "PoolShape",
    "QuotaError",
    "PrefixCache",
    "RadixKVError",
    "ReleaseOp",
    "RetainOp",
    "Retention",
    "SamplingParams",
    "SetQuotaOp",
    "StaleIncarnationError",
    "TimeHistogram",
    "UnauthenticatedError",
    "UnpinOp",
    "UnavailableError",
    "UnimplementedError",
    "UnknownPoolError",
    "UnknownSequenceError",
    "WrongThreadError",
    "connect",
    "pack_tokens",
    "proto_dir",
    "unpack_tokens",
}


def test_the_public_names_are_these_and_all_are_there() -> None:
    assert set(radixkv.__all__) == PUBLIC_NAMES
    assert len(radixkv.__all__) == len(PUBLIC_NAMES)
    assert all(hasattr(radixkv, name) for name in PUBLIC_NAMES)


def test_importing_radixkv_imports_neither_torch_nor_grpc() -> None:
    check = (
        "import sys, radixkv; print(sorted({'torch', 'grpc', 'google'} & {name.split('.')[0] for name in sys.modules}))"
    )
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
