"""Bytes of single tokens, which need not be whole characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["TokenSpeller"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


class TokenSpeller:
    """Spells the tokens of one tokenizer. O(bytes) per token.

    Args:
        tokenizer: transformers' tokenizer. Byte-level vocabularies write each byte as one printable character (Radford et al.,
            2019); others write words in plain, their leading space as U+2581, and other bytes as ``<0xE2>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        is_byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        self._bytes = _byte_of_character() if is_byte_level else None

    def spell(self, token_ids: Sequence[int]) -> list[bytes]:
        """Bytes of each token; a special token gives its name, an unused id gives no bytes."""
        return [self._spell_one(token_id) for token_id in token_ids]

    def _spell_one(self, token_id: int) -> bytes:
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if self._bytes is not None and all(character in self._bytes for character in token):
            return bytes(self._bytes[character] for character in token)
        match = _BYTE.fullmatch(token)
        if match is not None:
            return bytes([int(match.group(1), 16)])
        return str(token).replace(_WORD_START, " ").encode()


def _byte_of_character() -> dict[str, int]:
    """Printable bytes map to themselves, the others to the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
