"""The prefixes of a prompt that its request wants pinned: asked of the cache as soon as they are computed, once each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from radixkv.generation.request import PrefixPin

__all__ = ["Pinning"]


class Pinning:
    """What one generation has pinned. The cache answers in the order in which it was asked.

    Args:
        wanted: what is to be pinned.
    """

    __slots__ = ("_asked", "_due", "_num_tokens", "_wanted")

    def __init__(self, wanted: Sequence[PrefixPin] = ()) -> None:
        self._wanted = wanted
        self._due = list(range(len(wanted)))
        self._asked: deque[int] = deque()
        self._num_tokens = [0] * len(wanted)

    @property
    def has_due(self) -> bool:
        """Whether anything is still to be asked for. O(1)."""
        return bool(self._due)

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked for is answered."""
        return not self._asked

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """How many tokens each pin protects, in the order of the request; 0 where there was no room for it."""
        return tuple(self._num_tokens)

    def take_due(self, num_published: int) -> list[PrefixPin]:
        """The pins within the first `num_published` tokens, which count as asked for from now on."""
        taken = [index for index in self._due if self._wanted[index].num_tokens <= num_published]
        self._due = [index for index in self._due if index not in taken]
        self._asked += taken
        return [self._wanted[index] for index in taken]

    def answered(self, num_tokens: int) -> None:
        """What came of the pin that was asked for first of those unanswered."""
        self._num_tokens[self._asked.popleft()] = num_tokens

    def ask_again(self) -> None:
        """The cache has lost everything: what stood in it, and what it was asked."""
        self._due = list(range(len(self._wanted)))
        self._asked.clear()
        self._num_tokens = [0] * len(self._wanted)
