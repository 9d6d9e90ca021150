"""Where the n-grams of a growing text ended last.

    text      t t a b c d t t t a b c           the last three tokens, a b c, ended before at 5: d may follow
    tables    one per length n: hash of n tokens -> one past their last place; a later n-gram with the same slot takes it

Every hit is compared with the text, so a collision loses a draft and never makes one. 16 to 28 bytes per token with the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["LONGEST", "NgramIndex", "Place", "index_bytes"]

LENGTHS = (3, 6, 16)
LONGEST = LENGTHS[-1]
_FACTORS = [pow(0x9E3779B97F4A7C15, 2 * place + 1, 1 << 64) for place in range(LONGEST)]
_MASK = (1 << 64) - 1
_LEAST_SLOTS = 1 << 8
_FEW = 48
"""Tokens up to which a loop is faster than numpy."""
_MOST_COMPARED = 48
"""Longest match that is told."""


class Place(NamedTuple):
    """A match: it ends before `end` in the text, and is `length` tokens long as far as it was compared."""

    end: int
    length: int


def index_bytes(num_tokens: int) -> int:
    """Bytes of the index of a text of so many tokens, without the text."""
    return 4 * len(LENGTHS) * _num_slots(num_tokens)


def _num_slots(num_tokens: int) -> int:
    return max(_LEAST_SLOTS, 1 << (num_tokens - 1).bit_length())


class NgramIndex:
    """Of one text, which its owner keeps and only ever appends to."""

    def __init__(self) -> None:
        self._num_indexed = 0
        self._num_slots = 0
        self._tables: list[array[int]] = []

    @property
    def size_bytes(self) -> int:
        """Memory of the tables."""
        return 4 * len(LENGTHS) * self._num_slots

    def extend(self, text: array[int], end: int) -> None:
        """Index the n-grams that end at or before `end`. O(new tokens), amortised."""
        start = self._num_indexed
        if end > self._num_slots:
            self._num_slots = _num_slots(end)
            self._tables = [array("I", bytes(4 * self._num_slots)) for _ in LENGTHS]
            start = 0
        if end - start > _FEW:
            self._extend_at_once(text, start, end)
        else:
            shift = self._shift
            for last in range(start + 1, end + 1):
                for table, value in zip(self._tables, _hashes(text[max(0, last - LONGEST) : last]), strict=False):
                    table[value >> shift] = last
        self._num_indexed = end

    @property
    def _shift(self) -> int:
        return 64 - self._num_slots.bit_length() + 1

    def _extend_at_once(self, text: array[int], start: int, end: int) -> None:
        first = max(0, start - LONGEST + 1)
        tokens = np.array(text[first:end], dtype=np.uint64)
        value = np.zeros(len(tokens), np.uint64)
        for place in range(LONGEST):
            value[place:] += tokens[: len(tokens) - place] * np.uint64(_FACTORS[place])
            if place + 1 in LENGTHS:
                table = self._tables[LENGTHS.index(place + 1)]
                skipped = max(place, start - first)  # of windows that begin before the text, or are indexed
                slots = (value[skipped:] >> np.uint64(self._shift)).astype(np.int64)
                ends = np.arange(first + skipped + 1, end + 1, dtype=np.uint32)
                np.frombuffer(table, dtype=np.uint32)[slots] = ends  # of equal slots the last one stays

    def find(self, text: Sequence[int], tail: Sequence[int]) -> Place | None:
        """The last indexed place of the longest of the n-grams that `tail` ends with. O(1)."""
        if not self._num_slots:
            return None
        hashes = _hashes(tail[-LONGEST:])
        for table, length, value in reversed(list(zip(self._tables, LENGTHS, hashes, strict=False))):
            end = table[value >> self._shift]
            if end >= length and text[end - length : end] == tail[-length:]:
                return Place(end, _common(text, end, tail, length))
        return None


def _hashes(tokens: Sequence[int]) -> list[int]:
    """Of the last n tokens, for each length that there are enough for."""
    values, value = [], 0
    for place, (token, factor) in enumerate(zip(reversed(tokens), _FACTORS, strict=False), start=1):
        value += token * factor
        if place in LENGTHS:
            values.append(value & _MASK)
    return values


def _common(text: Sequence[int], end: int, tail: Sequence[int], length: int) -> int:
    most = min(end, len(tail), _MOST_COMPARED)
    while length < most and text[end - length - 1] == tail[-length - 1]:
        length += 1
    return length
