"""Text of a reply while its tokens arrive, never half a character."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

__all__ = ["StreamDecoder"]

_REPLACEMENT = "\ufffd"
_MAX_WAITING_TOKENS = 16
"""Tokens held back for the end of a character. Several characters may end at once where tokens cross their bounds. More
tokens than this are no valid text and are emitted as they are."""


class _Tokenizer(Protocol):
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def is_special(self, token_id: int) -> bool: ...


class StreamDecoder:
    """Text of a reply piece by piece, in O(1) per token: the pieces joined are the text of all its tokens.

    A token's text can depend on the token before it (a leading space) and end within a character. So the decoded window starts
    at tokens already emitted, and an incomplete character waits for the next token.
    """

    def __init__(self, text: _Tokenizer, before: Sequence[int] = (), *, keeps_special: bool = False) -> None:
        self._text = text
        self._keeps_special = keeps_special
        self._window = list(before)
        self._num_context = len(self._window)  # tokens at the window's start already emitted
        self._context_text = self._decode() if before else ""

    def copy(self) -> StreamDecoder:
        """An independent copy that has seen the same tokens."""
        twin = copy.copy(self)
        twin._window = self._window[:]
        return twin

    def push(self, token_ids: Sequence[int]) -> str:
        """Text completed by these tokens; may be empty."""
        return "".join(self._push(token_id) for token_id in token_ids)

    def _push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode()
        if text == self._context_text and self._text.is_special(token_id):
            self._window.pop()  # it has no text, and would hide the token before it from the next
            return ""
        if text.endswith(_REPLACEMENT) and len(self._window) - self._num_context < _MAX_WAITING_TOKENS:
            return ""
        return self._give_out(text)

    def flush(self) -> str:
        """Text left at the end of the reply; an incomplete last character is U+FFFD."""
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
