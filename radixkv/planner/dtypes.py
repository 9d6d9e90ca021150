"""Element types of weights and of KV, by size. Quantised elements share scales within a token and head."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["DTYPES", "KV_DTYPES", "ROUNDED_DTYPES", "KVDtype"]

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1.0625, "int4": 0.625}
"""Bytes of a weight, as a worker keeps it: in 8 bits with a 32-bit scale for every 64, in 4 bits with a scale and a minimum, of
16 bits each, for every 32.
"""

ROUNDED_DTYPES = ("int8", "int4")
"""Of matrices that a worker multiplies by; its embeddings keep 16 bits, next to a rounded output head if both are one."""

_SCALE_BYTES = 2


class KVDtype(NamedTuple):
    """`bits` per element, and scales per vector (one token's K or V of one head): one of `scale_bytes`, or two for each group
    of up to `group` channels.
    """

    bits: int
    scale_bytes: int
    group: int = 0

    def takes(self, width: int) -> bool:
        """Whether vectors of `width` elements can be stored: grouped formats pack pairs into bytes."""
        return not (self.group and width % 2)

    def vector_bytes(self, width: int) -> int:
        """Bytes of a vector of `width` elements, which `takes` allows, including its scales; 0 for width 0."""
        if not width:
            return 0
        num_scales = 2 * width // math.gcd(width // 2, self.group) if self.group else 1
        return -(-width * self.bits // 8) + num_scales * self.scale_bytes


KV_DTYPES = {
    "float32": KVDtype(32, 0),
    "bfloat16": KVDtype(16, 0),
    "float16": KVDtype(16, 0),
    "fp8": KVDtype(8, _SCALE_BYTES),
    "int8": KVDtype(8, _SCALE_BYTES),
    "int4": KVDtype(4, _SCALE_BYTES, group=16),
}
"""With scales per token and head, so that appending a token rescales nothing stored. Names and sizes match a worker's."""
