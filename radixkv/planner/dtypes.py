"""Element types of weights and of KV, by their size. A quantised KV element shares a scale with its token's head."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DTYPES", "KV_DTYPES", "KVDtype"]

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
"""Bytes of a weight."""

_SCALE_BYTES = 2


class KVDtype(NamedTuple):
    """`bits` of an element; `scale_bytes` that a vector (one token's K or V of one head) takes besides."""

    bits: int
    scale_bytes: int

    def vector_bytes(self, width: int) -> int:
        """Bytes of a vector of `width` elements, its scale included; 0 for width 0."""
        return -(-width * self.bits // 8) + self.scale_bytes if width else 0


KV_DTYPES = {
    "float32": KVDtype(32, 0),
    "bfloat16": KVDtype(16, 0),
    "float16": KVDtype(16, 0),
    "fp8": KVDtype(8, _SCALE_BYTES),
    "int8": KVDtype(8, _SCALE_BYTES),
    "int4": KVDtype(4, _SCALE_BYTES),
}
"""With scales per token and head, so that appending a token rescales nothing that is stored."""
