"""Files of exported blocks on their way; see `Engine.export` and `Engine.import_`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["ImportedBlocks", "chunks"]

MAX_CHUNK_BYTES = 1 << 20
"""Of a message, which clients of any language take."""


class ImportedBlocks(NamedTuple):
    """Tokens of an imported file, and how many of them, from the first, the block store holds now: fewer where it is full."""

    num_tokens: int
    num_stored_tokens: int


def chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of at most `MAX_CHUNK_BYTES`."""
    for piece in pieces:
        for start in range(0, len(piece), MAX_CHUNK_BYTES):
            yield piece[start : start + MAX_CHUNK_BYTES]
