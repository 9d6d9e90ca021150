"""When a branch ends, and which of its text may be shown before that is known."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from radixkv.worker.stream import FinishReason

__all__ = ["StopRules", "StopStrings", "Taken", "TextDecoder"]


class TextDecoder(Protocol):
    """Turns tokens to text one at a time, never half a character."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...

    def copy(self) -> TextDecoder:
        """One that has seen the same tokens, and goes its own way from here."""


class StopStrings:
    """Finds the first stop string in a stream of text and holds back what may be the beginning of one.

    Text that `push` returns is never taken back. O(characters · stop strings); holds at most the longest stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take in more text.

        Returns:
            The text that is certain now, and the stop string that was completed, if one was: nothing follows it.
        """
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[:at], stop
        num_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        certain = len(text) - num_held
        self._held = text[certain:]
        return text[:certain], None

    def copy(self) -> StopStrings:
        """One that has seen the same text."""
        return copy.copy(self)

    def flush(self) -> str:
        """What was held back and will not be completed any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class Taken(NamedTuple):
    """What one sampled token did: text that became certain; if the branch ends with it, why and by which stop."""

    text: str
    reason: FinishReason | None = None
    stop: str | int | None = None


class StopRules:
    """The end of one branch: stop tokens, stop strings, length. Without a decoder there is no text."""

    def __init__(self, stop_token_ids: Collection[int], stops: Sequence[str], decoder: TextDecoder | None) -> None:
        self.stop_token_ids = frozenset(stop_token_ids)
        self.has_stop_strings = bool(stops)
        self._stop_strings = StopStrings(stops)
        self._decoder = decoder

    def copy(self) -> StopRules:
        """Rules that have judged the same tokens, and go their own way from here."""
        twin = copy.copy(self)
        twin._stop_strings = self._stop_strings.copy()
        twin._decoder = self._decoder.copy() if self._decoder else None
        return twin

    def take(self, token_id: int, is_full: bool) -> Taken:
        """Judge the token just sampled; `is_full`: the history may not grow further."""
        if token_id in self.stop_token_ids:
            text, stop = self._finish()
            return Taken(text, FinishReason.STOP, token_id if stop is None else stop)
        text, stop = self._stop_strings.push(self._decoder.push([token_id]) if self._decoder else "")
        if stop is not None:
            return Taken(text, FinishReason.STOP, stop)
        if is_full:
            rest, stop = self._finish()
            return Taken(text + rest, FinishReason.LENGTH if stop is None else FinishReason.STOP, stop)
        return Taken(text)

    def end(self) -> Taken:
        """The reply ends here for a reason outside these rules: what text was held back."""
        text, stop = self._finish()
        return Taken(text, FinishReason.STOP, stop)

    def _finish(self) -> tuple[str, str | None]:
        text, stop = self._stop_strings.push(self._decoder.flush() if self._decoder else "")
        return (text, stop) if stop is not None else (text + self._stop_strings.flush(), None)
