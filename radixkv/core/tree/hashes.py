"""Names of blocks by content: a chain of 64-bit hashes, so that a block's name stands for the whole history up to its end.

    hash(block i) = BLAKE2b-64(hash(block i - 1) · token ids of block i),   hash(block -1) = BLAKE2b-64(namespace)

The same history has the same hashes in every pool, process and machine, and different ones in every other namespace.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from hashlib import blake2b

__all__ = ["chained_hashes", "namespace_hash"]

_HASH_BYTES = 8


@lru_cache(maxsize=1024)
def namespace_hash(namespace: str) -> int:
    """The seed of every chain of hashes in a namespace."""
    return int.from_bytes(blake2b(namespace.encode(), digest_size=_HASH_BYTES, person=b"radixkv").digest(), "little")


def chained_hashes(above: int, tokens: bytes, block_bytes: int) -> array[int]:
    """Hashes of whole blocks of packed tokens in order, as unsigned 64-bit integers. O(tokens), about 0.5 µs a block.

    Args:
        above: the hash of the block above the first, or `namespace_hash` where there is none.
    """
    digest = above.to_bytes(_HASH_BYTES, "little")
    digests = []
    for start in range(0, len(tokens), block_bytes):
        digest = blake2b(digest + tokens[start : start + block_bytes], digest_size=_HASH_BYTES).digest()
        digests.append(digest)
    return array("Q", struct.unpack(f"<{len(digests)}Q", b"".join(digests)))
