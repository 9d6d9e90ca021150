"""The text of a reply while its tokens come, never half a character."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

__all__ = ["StreamDecoder"]

_REPLACEMENT = "\ufffd"
_MAX_WAITING_TOKENS = 16
"""Tokens held back for the end of a character. Several characters may have to end at once where tokens cross their
bounds; more than this is no text at all and is given out as it is."""


class _Tokenizer(Protocol):
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def is_special(self, token_id: int) -> bool: ...


class StreamDecoder:
    """Text of a reply piece by piece, in O(1) per token: the pieces joined are the text of all its tokens.

    A token's text can depend on the one before it (a leading space) and end within a character. So a window is
    decoded that starts at tokens whose text was given out, and what ends within a character waits for the next token.
    """

    def __init__(self, text: _Tokenizer, before: Sequence[int] = (), *, keeps_special: bool = False) -> None:
        self._text = text
        self._keeps_special = keeps_special
        self._window = list(before)
        self._num_context = len(self._window)  # tokens at the window's start whose text was given out already
        self._context_text = self._decode() if before else ""

    def copy(self) -> StreamDecoder:
        """One that has seen the same tokens, and goes its own way from here."""
        twin = copy.copy(self)
        twin._window = self._window[:]
        return twin

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these further tokens complete; may be empty."""
        return "".join(self._push(token_id) for token_id in token_ids)

    def _push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode()
        if text == self._context_text and self._text.is_special(token_id):
            self._window.pop()  # it has no text, and would hide from the next token what stands before it
            return ""
        if text.endswith(_REPLACEMENT) and len(self._window) - self._num_context < _MAX_WAITING_TOKENS:
            return ""
        return self._give_out(text)

    def flush(self) -> str:
        """What is left at the end of the reply, a broken last character as U+FFFD."""
        return self._give_out(self._decode())

    def _decode(self) -> str:
        return self._text.decode(self._window, skip_special_tokens=not self._keeps_special)

    def _give_out(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        if self._num_context < len(self._window):
            self._window = self._window[self._num_context :]
            self._num_context = len(self._window)
            self._context_text = self._decode()
        return piece
