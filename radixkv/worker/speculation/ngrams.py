"""Where the n-grams of a growing text ended last.

    text      t t a b c d t t t a b c           the last three tokens, a b c, ended before at 5: d may follow
    heads     per length n: hash of n tokens -> one past the last place of such n tokens
    before    per length n: one past a place -> the same of the place before it with the same hash

Every hit is compared with the text, so a collision makes no draft. 28 to 56 bytes per token with the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LONGEST", "Match", "NgramIndex", "index_bytes"]

LENGTHS = (1, 4, 16)
LONGEST = LENGTHS[-1]
_PLACES = {1: (0,), 4: (1, 2, 3), 16: (6, 9, 12, 15)}
"""Tokens, counted from the last, that are hashed for n-grams of a length, together with those of the shorter ones."""
_FACTORS = {place: pow(0x9E3779B97F4A7C15, 2 * place + 1, 1 << 64) for places in _PLACES.values() for place in places}
_MASK = (1 << 64) - 1
_LEAST_SLOTS = 1 << 8
_FEW = 48
"""Tokens up to which a loop is faster than numpy."""
_MOST_COMPARED = 48
"""Longest match that is measured."""
_MOST_PLACES = 8
"""Places of one n-gram that are looked at, the latest first."""


class Match(NamedTuple):
    """Places, the latest first: a match ends before each, and is `length` tokens long as far as it was compared."""

    ends: list[int]
    length: int


def index_bytes(num_tokens: int) -> int:
    """Bytes of the index of a text of so many tokens, without the text."""
    return 8 * len(LENGTHS) * _num_slots(num_tokens)


def _num_slots(num_tokens: int) -> int:
    return max(_LEAST_SLOTS, 1 << (num_tokens - 1).bit_length())


class NgramIndex:
    """Of one text, which its owner keeps and only ever appends to."""

    def __init__(self) -> None:
        self._num_indexed = 0
        self._num_slots = 0
        self._heads: list[array[int]] = []
        self._before: list[array[int]] = []

    @property
    def size_bytes(self) -> int:
        """Memory of the tables."""
        return 8 * len(LENGTHS) * self._num_slots

    def extend(self, text: array[int], end: int) -> None:
        """Index the n-grams that end at or before `end`. O(new tokens), amortised."""
        start = self._num_indexed
        if end > self._num_slots:
            self._num_slots = _num_slots(end)
            self._heads = [array("I", bytes(4 * self._num_slots)) for _ in LENGTHS]
            self._before = [array("I", bytes(4 * self._num_slots + 4)) for _ in LENGTHS]
            start = 0
        if end - start > _FEW:
            self._extend_at_once(text, start, end)
        else:
            shift = self._shift
            for last in range(start + 1, end + 1):
                hashes = _hashes(text[max(0, last - LONGEST) : last])
                for heads, before, value in zip(self._heads, self._before, hashes, strict=False):
                    before[last] = heads[value >> shift]
                    heads[value >> shift] = last
        self._num_indexed = end

    @property
    def _shift(self) -> int:
        return 64 - self._num_slots.bit_length() + 1

    def _extend_at_once(self, text: array[int], start: int, end: int) -> None:
        first = max(0, start - LONGEST + 1)
        tokens = np.array(text[first:end], dtype=np.uint64)
        value = np.zeros(len(tokens), np.uint64)
        for index, length in enumerate(LENGTHS):
            for place in _PLACES[length]:
                value[place:] += tokens[: len(tokens) - place] * np.uint64(_FACTORS[place])
            skipped = max(length - 1, start - first)  # of windows that begin before the text, or are indexed
            slots = (value[skipped:] >> np.uint64(self._shift)).astype(np.int64)
            self._link(index, slots, np.arange(first + skipped + 1, end + 1))

    def _link(self, index: int, slots: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Put rising ends into their slots."""
        heads, before = (np.frombuffer(of_all[index], dtype=np.uint32) for of_all in (self._heads, self._before))
        order = np.argsort(slots, kind="stable")
        slots, ends = slots[order], ends[order]
        is_first = np.diff(slots, prepend=-1) != 0
        before[ends] = np.where(is_first, heads[slots], np.roll(ends, 1))
        is_last = np.roll(is_first, -1)
        heads[slots[is_last]] = ends[is_last]

    def find(self, text: Sequence[int], tail: Sequence[int]) -> Match | None:
        """Those with the longest match among the last places of the longest n-gram that `tail` ends with. O(1)."""
        if not self._num_slots:
            return None
        for index, value in reversed(list(enumerate(_hashes(tail[-LONGEST:])))):
            length, end, before = LENGTHS[index], self._heads[index][value >> self._shift], self._before[index]
            wanted, ends = tail[-length:], list[int]()
            longest = 0
            for _ in range(_MOST_PLACES):
                if end < length:
                    break
                if text[end - length : end] == wanted:
                    common = _common(text, end, tail, length)
                    if common > longest:
                        ends, longest = [end], common
                    elif common == longest:
                        ends.append(end)
                end = before[end]
            if ends:
                return Match(ends, longest)
        return None


def _hashes(tokens: Sequence[int]) -> list[int]:
    """Of the last n tokens, for each length that there are enough for."""
    values, value = [], 0
    for length in LENGTHS:
        if length > len(tokens):
            break
        for place in _PLACES[length]:
            value += tokens[-1 - place] * _FACTORS[place]
        values.append(value & _MASK)
    return values


def _common(text: Sequence[int], end: int, tail: Sequence[int], length: int) -> int:
    most = min(end, len(tail), _MOST_COMPARED)
    while length < most and text[end - length - 1] == tail[-length - 1]:
        length += 1
    return length
