"""Three ways to allocate a pool: the real cache, blocks per sequence without sharing, and a span of the longest length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from radixkv import OutOfBlocksError, PrefixCache, pack_tokens

__all__ = ["Lengths", "Memory", "Paged", "RadixKV", "ReserveToMax"]


class Lengths(NamedTuple):
    """Lengths of one request, in tokens."""

    prompt: int
    generated: int


class Memory(Protocol):
    """A way to allocate the pool. `key` names a request."""

    def start(self, key: int, lengths: Lengths) -> bool: ...

    def grow(self, key: int, num_tokens: int) -> None: ...

    def finish(self, key: int) -> None: ...

    def num_held_slots(self) -> int: ...


class RadixKV:
    """The real cache, used as by the worker."""

    def __init__(self, num_blocks: int, block_size: int, num_common: int) -> None:
        self._cache = PrefixCache(num_blocks, block_size)
        self._block_size = block_size
        self._common = np.arange(num_common, dtype=np.uint32)
        self._next_token = num_common
        self._sequences: dict[int, _Sequence] = {}
        if num_common:
            opened = self._cache.acquire(pack_tokens(self._common))
            self._cache.insert(opened.seq_id, num_common)

    def start(self, key: int, lengths: Lengths) -> bool:
        own = lengths.prompt + lengths.generated - len(self._common)
        tokens = np.concatenate(
            [self._common, np.arange(self._next_token, self._next_token + max(1, own), dtype=np.uint32)]
        )
        try:
            prompt = pack_tokens(tokens[: lengths.prompt])
            opened = self._cache.acquire(prompt, reserve=lengths.generated + self._block_size)
        except OutOfBlocksError:
            return False
        self._next_token += max(1, own)
        self._sequences[key] = _Sequence(opened.seq_id, pack_tokens(tokens), lengths.prompt, lengths.prompt)
        return True

    def grow(self, key: int, num_tokens: int) -> None:
        sequence = self._sequences[key]
        length = len(sequence.tokens) // 4
        if num_tokens >= sequence.num_known and sequence.room - num_tokens < self._block_size:
            ahead = -(-(num_tokens + self._block_size) // self._block_size) * self._block_size
            room = min(length, ahead)
            if room > sequence.room:
                sequence.room = room
                self._cache.extend(sequence.seq_id, room)
        new = sequence.tokens[4 * sequence.num_known : 4 * num_tokens]
        sequence.num_known = max(sequence.num_known, num_tokens)
        self._cache.insert(sequence.seq_id, num_tokens, new)

    def finish(self, key: int) -> None:
        self._cache.release(self._sequences.pop(key).seq_id)

    def num_held_slots(self) -> int:
        stats = self._cache.stats()
        return (stats.num_blocks - stats.num_free_blocks - stats.num_evictable_blocks) * self._block_size

    def check(self) -> None:
        """Check the cache's invariants."""
        self._cache.check()


@dataclass(slots=True)
class _Sequence:
    """`tokens`: packed, prompt and generated. `num_known`: tokens passed to the cache. `room`: as extended."""

    seq_id: int
    tokens: bytes
    num_known: int
    room: int


class Paged:
    """Blocks per sequence, one at a time; the most that a request may need is reserved when it starts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._promised = 0
        self._blocks: dict[int, int] = {}
        self._most: dict[int, int] = {}

    def _count(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def start(self, key: int, lengths: Lengths) -> bool:
        most = self._count(lengths.prompt + lengths.generated)
        if self._promised + most > self._num_blocks:
            return False
        self._promised += most
        self._most[key] = most
        self._blocks[key] = self._count(lengths.prompt)
        return True

    def grow(self, key: int, num_tokens: int) -> None:
        self._blocks[key] = max(self._blocks[key], self._count(num_tokens))

    def finish(self, key: int) -> None:
        self._promised -= self._most.pop(key)
        del self._blocks[key]

    def num_held_slots(self) -> int:
        return sum(self._blocks.values()) * self._block_size


class ReserveToMax:
    """One span of the longest length per request."""

    def __init__(self, num_slots: int, longest: int) -> None:
        self._max_running = num_slots // longest
        self._longest = longest
        self._running: set[int] = set()

    def start(self, key: int, lengths: Lengths) -> bool:  # noqa: ARG002  # all take the same
        if len(self._running) >= self._max_running:
            return False
        self._running.add(key)
        return True

    def grow(self, key: int, num_tokens: int) -> None:
        """Nothing to do: the span is reserved."""

    def finish(self, key: int) -> None:
        self._running.remove(key)

    def num_held_slots(self) -> int:
        return len(self._running) * self._longest
