"""Names of blocks: a keyed hash chain over token ids.

    root = H(fingerprint)    name of block i = H(name of block i - 1 · its token ids)    H: BLAKE2b-128, keyed by the namespace

A name stands for the whole history up to the end of its block, the model and the namespace. It survives its parents, so a block
whose prefix was evicted keeps its name. Without the namespace's key no guessed prompt can be confirmed.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.stores.secrets.keys import NamespaceKeys

__all__ = ["NAME_BYTES", "names_of", "root_name"]

NAME_BYTES = 16


def root_name(keys: NamespaceKeys, fingerprint: bytes) -> bytes:
    """The parent of every first block of the namespace, 16 bytes. `fingerprint`: of model and layout, of any length."""
    return blake2b(fingerprint, digest_size=NAME_BYTES, key=keys.name_key, person=b"radixkv root").digest()


def names_of(keys: NamespaceKeys, parent: bytes, tokens: bytes | memoryview, block_bytes: int) -> list[bytes]:
    """Names of the blocks that follow `parent`, 16 bytes each. O(len(tokens)).

    Args:
        parent: name of the block before the first, or `root_name`.
        tokens: packed token ids, 4 bytes each; a last part of a block has no name.
        block_bytes: packed bytes of a block's token ids, 4 x block size.

    Raises:
        InvalidArgumentError: `block_bytes` is below 4 or no multiple of 4, or `parent` has another length than 16.
    """
    if block_bytes < 4 or block_bytes % 4:
        raise InvalidArgumentError("block_bytes", block_bytes, "a positive multiple of 4")
    if len(parent) != NAME_BYTES:
        raise InvalidArgumentError("parent", f"{len(parent)} bytes", f"{NAME_BYTES} bytes")
    keyed = blake2b(digest_size=NAME_BYTES, key=keys.name_key, person=b"radixkv block")
    names: list[bytes] = []
    for start in range(0, len(tokens) - block_bytes + 1, block_bytes):
        step = keyed.copy()
        step.update(parent)
        step.update(tokens[start : start + block_bytes])
        parent = step.digest()
        names.append(parent)
    return names
