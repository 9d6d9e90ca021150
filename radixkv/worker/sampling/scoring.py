"""Log probabilities of prompts' tokens: the known part of one prompt, and the memory of all scored prompts.

    prompt    t0 t1 t2 t3 t4 t5 t6 t7        the log probability of t5 follows from the logits of t4
              |--- known ----|- left -|
                             ^next           positions from next - 1 on are run, whatever of their KV is cached

Logits are not cached. The log probabilities computed from them are remembered: among many prompts with one prefix, each runs
only its own tokens and the last one of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import OutOfBlocksError
from radixkv.core.tokens import TOKEN_BYTES, num_tokens
from radixkv.generation.stream import PromptLogprobs

__all__ = ["PromptScores", "ScoreMemory", "Scores"]

REMEMBERED_TOKENS = 131_072
"""Tokens whose log probabilities a worker remembers: 3 MiB, plus the tree."""

MAX_PIECE = 1024
"""Positions of one event."""


class Scores(NamedTuple):
    """Of n consecutive tokens: logprobs [n] float32 and ranks [n] int32; of the k >= 1 most likely tokens at each position,
    most likely first, top_ids [n, k] int32 and top_logprobs [n, k] float32.
    """

    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]

    def of(self, at: slice | npt.NDArray[np.int32]) -> Scores:
        """Scores of some of the tokens."""
        return Scores(self.logprobs[at], self.ranks[at], self.top_ids[at], self.top_logprobs[at])


class ScoreMemory:
    """Log probabilities of the last scored prompt tokens, each by its namespace and the tokens before it.

    Held in a prefix cache of blocks of one token: shared prefixes are kept once, and the least recently used branches are
    evicted first, from their ends. Remembers one most likely token per position. For one thread.

    Args:
        num_tokens: most tokens remembered.
    """

    def __init__(self, num_tokens: int = REMEMBERED_TOKENS) -> None:
        self._num_tokens = num_tokens
        self._known = Scores(
            np.empty(num_tokens, np.float32),  # NaN: not known, but a token after it is
            np.empty(num_tokens, np.int32),
            np.empty((num_tokens, 1), np.int32),
            np.empty((num_tokens, 1), np.float32),
        )

    @cached_property
    def _cache(self) -> PrefixCache:
        return PrefixCache(self._num_tokens, block_size=1, eviction="lru")

    def recall(self, namespace: str, tokens: bytes, start: int) -> Scores:
        """Scores of the tokens from position `start` on, up to the first that is not remembered. O(tokens)."""
        num_matched = self._cache.match(tokens, namespace=namespace).num_tokens
        if num_matched <= start:
            return self._known.of(slice(0))
        sequence = self._cache.acquire(tokens[: num_matched * TOKEN_BYTES], namespace=namespace)
        self._cache.release(sequence.seq_id)
        found = self._known.of(np.frombuffer(sequence.block_table, np.int32)[start:])
        unknown = np.flatnonzero(np.isnan(found.logprobs))
        return found.of(slice(unknown[0])) if len(unknown) else found

    def keep(self, namespace: str, tokens: bytes, start: int, scores: Scores) -> None:
        """Remember the scores of the tokens from position `start` on; nothing if they are too many. O(tokens)."""
        end = start + len(scores.logprobs)
        with suppress(OutOfBlocksError):
            sequence = self._cache.acquire(tokens[: end * TOKEN_BYTES], namespace=namespace)
            slots = np.frombuffer(sequence.block_table, np.int32)
            self._known.logprobs[slots[sequence.num_stored_tokens : start]] = np.nan
            for column, values in zip(self._known, scores, strict=True):
                column[slots[start:]] = values if values.ndim == 1 else values[:, :1]
            self._cache.insert(sequence.seq_id, num_computed=end)
            self._cache.release(sequence.seq_id)


class PromptScores:
    """Known scores of one prompt. For the thread of its memory.

    Args:
        namespace, prompt: packed tokens and their namespace.
        start: first position to score.
        num_top: most likely tokens requested.
        memory: of earlier scores; None: the prompt shares nothing with others.

    Attributes:
        next: first position not scored yet.
    """

    def __init__(self, namespace: str, prompt: bytes, start: int, num_top: int, memory: ScoreMemory | None) -> None:
        self.next = max(1, start)
        self.num_top = num_top
        self._namespace = namespace
        self._prompt = prompt
        self._length = num_tokens(prompt)
        self._memory = memory

    @property
    def num_left(self) -> int:
        """Tokens still to score."""
        return max(0, self._length - self.next)

    def recall(self) -> Iterator[PromptLogprobs]:
        """Emit remembered scores; they are known from now on."""
        if self._memory is not None and self.num_top <= 1 and self.num_left:
            yield from self._tell(self._memory.recall(self._namespace, self._prompt, self.next))

    def take(self, start: int, scores: Scores) -> Iterator[PromptLogprobs]:
        """Emit scores computed for the tokens from position `start` on, except known ones."""
        new = scores.of(slice(self.next - start, None))
        assert start <= self.next, "positions are run in their order"
        if self._memory is not None and len(new.logprobs):
            self._memory.keep(self._namespace, self._prompt, self.next, new)
        yield from self._tell(new)

    def _tell(self, scores: Scores) -> Iterator[PromptLogprobs]:
        for begin in range(0, len(scores.logprobs), MAX_PIECE):
            piece = scores.of(slice(begin, begin + MAX_PIECE))
            start, self.next = self.next, self.next + len(piece.logprobs)
            yield PromptLogprobs(
                start,
                tuple(piece.logprobs.tolist()),
                tuple(piece.ranks.tolist()),
                tuple(piece.top_ids[:, : self.num_top].ravel().tolist()),
                tuple(piece.top_logprobs[:, : self.num_top].ravel().tolist()),
            )
