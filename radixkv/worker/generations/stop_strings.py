"""Stop strings: finding the first in a stream of text, in time that grows with the text alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Finds the first stop string in a stream of text and holds back what may be the beginning of one.

    Text that `push` returns is never taken back. At most the longest stop string is held, and copied with each text. Else
    O(characters) however many stop strings there are, and once for all copies at most as much as those are long together.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _Automaton(stops) if stops else None
        self._state = self._automaton.root if self._automaton else None
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take in more text.

        Returns:
            The text that is certain now, and the stop string that was completed, if one was: nothing follows it. Where several
            were, the one that begins first; of those that begin together, the one that was given first.
        """
        if self._automaton is None or self._state is None:
            return text, None
        step, state = self._automaton.step, self._state
        num_before = len(self._held)
        found: tuple[int, int, str] | None = None
        for at, char in enumerate(text, num_before + 1):
            state = step(state, char)
            if state.match is not None:
                rank, stop = state.match
                began = (at - len(stop), rank, stop)
                found = began if found is None else min(found, began)
        text = self._held + text
        if found is not None:
            self._held, self._state = "", self._automaton.root
            return text[: found[0]], found[2]
        certain = len(text) - state.depth
        self._held, self._state = text[certain:], state
        return text[:certain], None

    def copy(self) -> StopStrings:
        """One that has seen the same text."""
        return copy.copy(self)

    def flush(self) -> str:
        """What was held back and will not be completed any more."""
        held, self._held = self._held, ""
        self._state = self._automaton.root if self._automaton else None
        return held


class _State:
    """That the text ends with a beginning of stop strings, and with no longer one.

    Attributes:
        depth: length of that beginning.
        fallback: the state of the longest end of it that is a beginning too.
        next: per character with which a stop string goes on, the state or, before it was first reached, which stop strings do.
        match: rank and text of the longest stop string that the text ends with.
    """

    __slots__ = ("depth", "fallback", "match", "next")

    def __init__(self, depth: int, fallback: _State | None) -> None:
        self.depth = depth
        self.fallback = fallback
        self.next: dict[str, _State | tuple[int, int]] = {}
        self.match: tuple[int, str] | None = fallback.match if fallback is not None else None


class _Automaton:
    """Of Aho and Corasick (1975), made as far as the text comes: a state when it is first reached, with those it falls back to.

    One character makes at most one state per stop string, and all together as many as the stop strings have characters.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._ranks = {stop: rank for rank, stop in reversed(list(enumerate(stops)))}
        self._stops = sorted(self._ranks)
        self.root = self._new(0, None, 0, len(self._stops))

    def step(self, state: _State, char: str) -> _State:
        """The state after one more character. O(1), amortised over a text."""
        while True:
            following = state.next.get(char)
            if isinstance(following, _State):
                return following
            if following is not None:
                fallback = self.root if state.fallback is None else self.step(state.fallback, char)
                made = state.next[char] = self._new(state.depth + 1, fallback, *following)
                return made
            if state.fallback is None:
                return state
            state = state.fallback

    def _new(self, depth: int, fallback: _State | None, low: int, high: int) -> _State:
        """The state of the beginning that the stop strings from `low` to `high` share."""
        state = _State(depth, fallback)
        if len(self._stops[low]) == depth:  # the shortest is the first
            state.match = self._ranks[self._stops[low]], self._stops[low]
            low += 1
        while low < high:
            char, end = self._stops[low][depth], low + 1
            while end < high and self._stops[end][depth] == char:
                end += 1
            state.next[char] = low, end
            low = end
        return state
