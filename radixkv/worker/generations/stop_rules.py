"""When a branch ends, and which of its text is certain before that."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.stop_strings import StopStrings

__all__ = ["StopRules", "Taken", "TextDecoder"]


class TextDecoder(Protocol):
    """Turns tokens to text one at a time, never half a character."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...

    def copy(self) -> TextDecoder:
        """An independent copy that has seen the same tokens."""


class Taken(NamedTuple):
    """Effect of one sampled token: text that became certain, and the reason and stop if the branch ends with it."""

    text: str
    reason: FinishReason | None = None
    stop: str | int | None = None


class StopRules:
    """The end of one branch: stop tokens, stop strings, length. Without a decoder there is no text.

    `includes_stop`: the stop string or token is part of the text.
    """

    def __init__(
        self,
        stop_token_ids: Collection[int],
        stops: Sequence[str],
        decoder: TextDecoder | None,
        includes_stop: bool = False,
    ) -> None:
        self._includes_stop = includes_stop
        self.stop_token_ids = frozenset(stop_token_ids)
        self.has_stop_strings = bool(stops)
        self._stop_strings = StopStrings(stops)
        self._decoder = decoder

    def copy(self) -> StopRules:
        """An independent copy that has seen the same tokens."""
        twin = copy.copy(self)
        twin._stop_strings = self._stop_strings.copy()
        twin._decoder = self._decoder.copy() if self._decoder else None
        return twin

    def take(self, token_id: int, is_full: bool) -> Taken:
        """Judge the token just sampled; `is_full`: the history may not grow further."""
        if token_id in self.stop_token_ids:
            if not self._includes_stop:
                text, stop = self._finish()
                return Taken(text, FinishReason.STOP, token_id if stop is None else stop)
            text, stop = self._push(token_id)
            rest, stop = self._finish() if stop is None else ("", stop)
            return Taken(text + rest, FinishReason.STOP, token_id if stop is None else stop)
        text, stop = self._push(token_id)
        if stop is not None:
            return Taken(text, FinishReason.STOP, stop)
        if is_full:
            rest, stop = self._finish()
            return Taken(text + rest, FinishReason.LENGTH if stop is None else FinishReason.STOP, stop)
        return Taken(text)

    def end(self) -> Taken:
        """End the reply for a reason outside these rules. Returns the text held back."""
        text, stop = self._finish()
        return Taken(text, FinishReason.STOP, stop)

    def _push(self, token_id: int) -> tuple[str, str | None]:
        return self._found(*self._stop_strings.push(self._decoder.push([token_id]) if self._decoder else ""))

    def _finish(self) -> tuple[str, str | None]:
        text, stop = self._found(*self._stop_strings.push(self._decoder.flush() if self._decoder else ""))
        return (text, stop) if stop is not None else (text + self._stop_strings.flush(), None)

    def _found(self, text: str, stop: str | None) -> tuple[str, str | None]:
        return (text + stop if stop is not None and self._includes_stop else text), stop
