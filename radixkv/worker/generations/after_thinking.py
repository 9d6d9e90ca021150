"""A grammar for the answer that follows a reply's thoughts."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

import numpy as np

from radixkv.worker.generations.stop_rules import TextDecoder
from radixkv.worker.sampling.grammar import GrammarMatcher

__all__ = ["AfterThinking"]

_MAX_GAPS = 2


class AfterThinking:
    """A matcher of the answer after the thoughts. Within the thoughts every token is allowed except a stop token.

    Args:
        matcher: of the answer.
        decoder: of the reply's text.
        begins_answer: the text after which the answer begins.
        vocab_size, stop_token_ids: size of the vocabulary, and tokens that end a reply.
        open_id: the token that opens the thoughts, where the model may write it first; None: the prompt has opened them.
        gap_ids: tokens of which up to two may stand between the thoughts and the answer.
    """

    def __init__(
        self,
        matcher: GrammarMatcher,
        decoder: TextDecoder,
        begins_answer: str,
        *,
        vocab_size: int,
        stop_token_ids: Collection[int],
        open_id: int | None = None,
        gap_ids: Collection[int] = (),
    ) -> None:
        self._matcher = matcher
        self._decoder = decoder
        self._begins_answer = begins_answer
        self._open_id, self._gap_ids = open_id, frozenset(gap_ids)
        self._beside: frozenset[int] = (
            frozenset() if open_id is None else frozenset([open_id])
        )  # allowed in addition to the grammar
        self._is_thinking = open_id is None
        self._tail = ""
        self._num_gaps = 0
        bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
        bits[:vocab_size] = 1
        bits[[token_id for token_id in stop_token_ids if token_id < vocab_size]] = 0
        self._free = np.packbits(bits, bitorder="little").tobytes()
        self.fault = ""

    @property
    def is_over(self) -> bool:
        """Whether the grammar is fulfilled and no token may follow."""
        return not self._is_thinking and self._matcher.is_over

    def allowed(self) -> bytes:
        """Tokens that may come next: one bit per token id, least significant first."""
        if self._is_thinking:
            return self._free
        allowed = self._matcher.allowed()
        self.fault = self._matcher.fault
        if not self._beside:
            return allowed
        bits = bytearray(allowed)
        for token_id in self._beside:
            bits[token_id >> 3] |= 1 << (token_id & 7)
        return bytes(bits)

    def take(self, token_id: int) -> bool:
        """Advance by a token. Returns whether it is allowed."""
        if self._is_thinking:
            self._tail += self._decoder.push((token_id,))
            self._is_thinking = self._begins_answer not in self._tail
            self._tail = self._tail[-len(self._begins_answer) :]
            self._beside = frozenset() if self._is_thinking else self._gap_ids
            return True
        beside, self._beside = self._beside, frozenset()
        if token_id in beside:
            self._is_thinking = token_id == self._open_id
            self._num_gaps += not self._is_thinking
            if 0 < self._num_gaps < _MAX_GAPS:
                self._beside = self._gap_ids
            return True
        is_taken = self._matcher.take(token_id)
        self.fault = self._matcher.fault
        return is_taken

    def copy(self) -> AfterThinking:
        """An independent copy at the same point."""
        twin = copy(self)
        twin._matcher, twin._decoder = self._matcher.copy(), self._decoder.copy()
        return twin
