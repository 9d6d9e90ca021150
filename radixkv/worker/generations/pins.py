"""Prefixes of a prompt that its request pins: each is requested once, as soon as it is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from radixkv.generation.request import PrefixPin

__all__ = ["Pinning"]


class Pinning:
    """Pins of one generation. The cache answers in the order of the requests.

    Args:
        wanted: the pins of the request.
    """

    __slots__ = ("_asked", "_due", "_num_tokens", "_wanted")

    def __init__(self, wanted: Sequence[PrefixPin] = ()) -> None:
        self._wanted = wanted
        self._due = list(range(len(wanted)))
        self._asked: deque[int] = deque()
        self._num_tokens = [0] * len(wanted)

    @property
    def has_due(self) -> bool:
        """Whether a pin is not requested yet. O(1)."""
        return bool(self._due)

    @property
    def is_settled(self) -> bool:
        """Whether all requested pins are answered."""
        return not self._asked

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Tokens protected by each pin, in the order of the request; 0: no room in the budget."""
        return tuple(self._num_tokens)

    def take_due(self, num_published: int) -> list[PrefixPin]:
        """Pins within the first `num_published` tokens. They count as requested from now on."""
        taken = [index for index in self._due if self._wanted[index].num_tokens <= num_published]
        self._due = [index for index in self._due if index not in taken]
        self._asked += taken
        return [self._wanted[index] for index in taken]

    def answered(self, num_tokens: int) -> None:
        """Apply the answer to the oldest unanswered pin."""
        self._num_tokens[self._asked.popleft()] = num_tokens

    def ask_again(self) -> None:
        """Reset after the cache was lost: pins are requested again."""
        self._due = list(range(len(self._wanted)))
        self._asked.clear()
        self._num_tokens = [0] * len(self._wanted)
