"""A model that can be wrong only if its KV is, and its definition: what a request must be answered, without any cache.

The KV of a position is a number made of the KV before it and the token; the next token depends on the KV of every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

__all__ = ["POISON", "VOCAB_SIZE", "continue_history", "kv_after", "kv_of", "next_token", "seed_of"]

VOCAB_SIZE = 3
POISON = -1
"""What a slot holds before anything was written to it; no KV is negative."""

_MASK = (1 << 61) - 1


def seed_of(namespace: str) -> int:
    """The KV before the first position."""
    return crc32(namespace.encode())


def kv_after(before: int, token: int) -> int:
    """The KV of a position."""
    mixed = ((before ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & _MASK
    return mixed ^ (mixed >> 29)


def kv_of(namespace: str, tokens: Sequence[int]) -> list[int]:
    """The KV of every position of a history. O(n)."""
    before, kv = seed_of(namespace), []
    for token in tokens:
        before = kv_after(before, token)
        kv.append(before)
    return kv


def next_token(kv: Sequence[int]) -> int:
    """What follows positions with this KV."""
    return kv_after(sum(kv) & _MASK, len(kv)) % VOCAB_SIZE


def continue_history(namespace: str, tokens: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy continuation, straight from the definition."""
    kv = kv_of(namespace, tokens)
    continuation = []
    for _ in range(num_tokens):
        continuation.append(next_token(kv))
        kv.append(kv_after(kv[-1], continuation[-1]))
    return continuation
