"""Chains of block hashes as token ids, for engines that look blocks up by hash, as offloading managers do.

Each hash becomes a fixed number of uint32 ids that hold all of its bits, and a pool with that block size holds one of the
engine's blocks per block of its own. Two hashes have the same ids only if they are equal, so a match is as exact as the
engine's own hash; a chain matches only if every hash before does. Models and adapters are set apart by namespace.

    keys = HashKeys(hash_bytes=32)
    cache = PrefixCache(num_blocks=4096, block_size=keys.ids_per_hash)
    seq = cache.acquire(keys.pack(hashes), namespace="model-a")     # seq.block_table[i]: where block i goes
    cache.insert(seq.seq_id, num_computed=keys.num_ids(len(hashes)))
    cache.release(seq.seq_id)
    keys.num_hashes(cache.match(keys.pack(hashes), namespace="model-a").num_tokens)    # leading blocks that are held
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radixkv.core import validation
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["HashKeys"]

MIN_HASH_BYTES, MAX_HASH_BYTES = 8, 64


@dataclass(frozen=True, slots=True)
class HashKeys:
    """The form of an engine's hashes: `hash_bytes` each, from 8 to 64.

    Raises:
        InvalidArgumentError: `hash_bytes` out of its bound.
    """

    hash_bytes: int = 32

    def __post_init__(self) -> None:
        validation.check_int("hash_bytes", self.hash_bytes, MIN_HASH_BYTES, MAX_HASH_BYTES)

    @property
    def ids_per_hash(self) -> int:
        """Token ids of one hash: the block size of the pool."""
        return -(-self.hash_bytes // TOKEN_BYTES)

    def pack(self, hashes: Iterable[bytes | int]) -> bytes:
        """The packed token ids of a chain, first block first. O(n).

        Args:
            hashes: bytes of just this length, or unsigned integers of as many bits.

        Raises:
            InvalidArgumentError: a hash of another length, or an integer out of its bound.
        """
        padding = bytes(self.ids_per_hash * TOKEN_BYTES - self.hash_bytes)
        return b"".join(self._bytes(block_hash) + padding for block_hash in hashes)

    def num_ids(self, num_hashes: int) -> int:
        """Token ids of so many hashes."""
        return num_hashes * self.ids_per_hash

    def num_hashes(self, num_ids: int) -> int:
        """Whole hashes in so many matched token ids: two that begin alike match in part, and are different blocks."""
        return num_ids // self.ids_per_hash

    def _bytes(self, block_hash: bytes | int) -> bytes:
        if isinstance(block_hash, int):
            if not 0 <= block_hash < 1 << 8 * self.hash_bytes:
                raise InvalidArgumentError("hashes", block_hash, f"in [0, 2**{8 * self.hash_bytes})")
            return block_hash.to_bytes(self.hash_bytes, "little")
        if len(block_hash) != self.hash_bytes:
            raise InvalidArgumentError("hashes", f"one of {len(block_hash)} bytes", f"of {self.hash_bytes} bytes each")
        return bytes(block_hash)
