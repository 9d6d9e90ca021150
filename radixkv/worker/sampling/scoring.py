"""How likely the tokens of prompts are: what is known of one prompt, and what is remembered of all that were scored.

    prompt    t0 t1 t2 t3 t4 t5 t6 t7        the log probability of t5 follows from the logits of t4
              |--- known ----|- left -|
                             ^next           positions from next - 1 on are run, whatever of their KV is cached

Logits are not cached. The log probabilities that follow from them are remembered, so that of many prompts under one prefix each
runs its own tokens and the last one of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import OutOfBlocksError
from radixkv.core.tokens import TOKEN_BYTES, num_tokens
from radixkv.generation.stream import PromptLogprobs

__all__ = ["PromptScores", "ScoreMemory", "Scores"]

REMEMBERED_TOKENS = 131_072
"""Tokens whose log probabilities a worker remembers: 3 MiB, and what the tree takes."""

MAX_PIECE = 1024
"""Positions of one event."""


class Scores(NamedTuple):
    """Of n tokens that follow one another: logprobs [n] float32 and ranks [n] int32; of the k >= 1 most likely ones at each
    position, most likely first, top_ids [n, k] int32 and top_logprobs [n, k] float32.
    """

    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]

    def of(self, at: slice | npt.NDArray[np.int32]) -> Scores:
        """Those of some of the tokens."""
        return Scores(self.logprobs[at], self.ranks[at], self.top_ids[at], self.top_logprobs[at])


class ScoreMemory:
    """Log probabilities of the prompt tokens that were scored last, each by its namespace and all that it stands behind.

    A prefix cache of blocks of one token keeps the books: shared prefixes are kept once, and the least recently used branches
    are forgotten first, from their ends. Of the most likely tokens it remembers one. For one thread.

    Args:
        num_tokens: that are remembered at most.
    """

    def __init__(self, num_tokens: int = REMEMBERED_TOKENS) -> None:
        self._cache = PrefixCache(num_tokens, block_size=1, eviction="lru")
        self._known = Scores(
            np.empty(num_tokens, np.float32),  # NaN: not known, what stands behind it is
            np.empty(num_tokens, np.int32),
            np.empty((num_tokens, 1), np.int32),
            np.empty((num_tokens, 1), np.float32),
        )

    def recall(self, namespace: str, tokens: bytes, start: int) -> Scores:
        """Of the tokens from position `start` on, as far as they are remembered without a gap. O(tokens)."""
        num_matched = self._cache.match(tokens, namespace=namespace).num_tokens
        if num_matched <= start:
            return self._known.of(slice(0))
        sequence = self._cache.acquire(tokens[: num_matched * TOKEN_BYTES], namespace=namespace)
        self._cache.release(sequence.seq_id)
        found = self._known.of(np.frombuffer(sequence.block_table, np.int32)[start:])
        unknown = np.flatnonzero(np.isnan(found.logprobs))
        return found.of(slice(unknown[0])) if len(unknown) else found

    def keep(self, namespace: str, tokens: bytes, start: int, scores: Scores) -> None:
        """Remember those of the tokens from position `start` on; nothing where they are too many. O(tokens)."""
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
    """What is known of one prompt. For the thread of its memory.

    Args:
        namespace, prompt: packed tokens and where they are cached.
        start: the first position whose token is asked about.
        num_top: most likely tokens that are asked for.
        memory: of what was scored before; None: the prompt shares nothing with others.

    Attributes:
        next: the first position whose token is not known yet.
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
        """Tokens asked about that are not known yet."""
        return max(0, self._length - self.next)

    def recall(self) -> Iterator[PromptLogprobs]:
        """Take what is remembered; it is known from now on."""
        if self._memory is not None and self.num_top <= 1 and self.num_left:
            yield from self._tell(self._memory.recall(self._namespace, self._prompt, self.next))

    def take(self, start: int, scores: Scores) -> Iterator[PromptLogprobs]:
        """Take what was computed of the tokens from position `start` on, of which some may be known."""
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
