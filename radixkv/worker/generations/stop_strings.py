"""Finds the first stop string in a stream of text, in time linear in the text."""

from __future__ import annotations

import copy
from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Finds the first stop string in a stream of text and holds back a possible start of one.

    Returned text is never taken back. At most the longest stop string is held back, and copied per text. Otherwise
    O(characters) for any number of stop strings, plus once, over all copies, at most their total length.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _Automaton(stops) if stops else None
        self._state = self._automaton.root if self._automaton else None
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Append text.

        Returns:
            The text that is certain now, and the stop string completed, if any: nothing follows it. Among several, the one that
            starts first; among those with the same start, the first given.
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
        """An independent copy that has seen the same text."""
        return copy.copy(self)

    def flush(self) -> str:
        """Text held back, at the end of the stream."""
        held, self._held = self._held, ""
        self._state = self._automaton.root if self._automaton else None
        return held


class _State:
    """The text ends with a prefix of stop strings, and with no longer one.

    Attributes:
        depth: length of that prefix.
        fallback: state of its longest proper suffix that is a prefix too.
        next: per next character of a stop string, the state or, before it is reached, the range of stop strings.
        match: rank and text of the longest stop string that the text ends with.
    """

    __slots__ = ("depth", "fallback", "match", "next")

    def __init__(self, depth: int, fallback: _State | None) -> None:
        self.depth = depth
        self.fallback = fallback
        self.next: dict[str, _State | tuple[int, int]] = {}
        self.match: tuple[int, str] | None = fallback.match if fallback is not None else None


class _Automaton:
    """Aho and Corasick (1975), built lazily: a state is made when the text first reaches it, with its fallbacks.

    One character makes at most one state per stop string; in total at most one state per character of the stop strings.
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
        """State of the prefix shared by the stop strings from `low` to `high`."""
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
