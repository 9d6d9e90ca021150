"""Interface of a prefix cache for the tree benchmark, and radixkv's implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from radixkv.core.api import AcquireResult, MatchResult
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["Ours", "System"]


class System(Protocol):
    """A prefix cache under measurement. Keys are in the system's own form, made outside the clock."""

    name: str
    block_size: int

    def reset(self, num_blocks: int = 0) -> None: ...

    def key(self, tokens: bytes) -> Any: ...

    def load(self, tokens: bytes) -> None: ...

    def match(self, key: Any, /) -> Any: ...

    def num_matched(self, answer: Any) -> int: ...

    def acquire(self, key: Any, /) -> Any: ...

    def num_held(self, held: Any) -> int: ...

    def release(self, held: Any) -> None: ...

    def prepare_insert(self, tokens: bytes) -> Any: ...

    def insert(self, prepared: Any) -> None: ...

    def finish_insert(self, prepared: Any) -> None: ...

    def fill(self) -> None: ...

    def evict(self, num_tokens: int) -> int: ...


class Ours:
    """radixkv's `PrefixCache`. `match` and `acquire` are its own bound methods, without a wrapper in the timed path."""

    name = "radixkv"
    block_size = 16

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.reset()

    def reset(self, num_blocks: int = 0) -> None:
        """Start on an empty tree, over a pool of `num_blocks` if given."""
        self.cache = PrefixCache(num_blocks or self.num_blocks, self.block_size)
        self.match: Callable[[Any], Any] = self.cache.match
        self.acquire: Callable[[Any], Any] = self.cache.acquire

    def key(self, tokens: bytes) -> bytes:
        return tokens

    def load(self, tokens: bytes) -> None:
        """Publish a history, without a lock on it."""
        seq = self.cache.acquire(tokens)
        self.cache.insert(seq.seq_id, len(tokens) // TOKEN_BYTES)
        self.cache.release(seq.seq_id)

    def num_matched(self, answer: MatchResult) -> int:
        return answer.num_tokens

    def num_held(self, held: AcquireResult) -> int:
        return min(held.num_stored_tokens, len(held.block_table) * self.block_size)

    def release(self, held: AcquireResult) -> None:
        self.cache.release(held.seq_id)

    def prepare_insert(self, tokens: bytes) -> tuple[int, int]:
        """A sequence on the cached prefix, with blocks for the rest."""
        return self.cache.acquire(tokens).seq_id, len(tokens) // TOKEN_BYTES

    def insert(self, prepared: tuple[int, int]) -> None:
        self.cache.insert(prepared[0], prepared[1])

    def finish_insert(self, prepared: tuple[int, int]) -> None:
        self.cache.release(prepared[0])

    def fill(self) -> None:
        """Do nothing: it evicts on request."""

    def evict(self, num_tokens: int) -> int:
        """Evict least recently used leaves. Returns the number of tokens of the evicted blocks."""
        return self.cache.evict(-(-num_tokens // self.block_size)) * self.block_size
